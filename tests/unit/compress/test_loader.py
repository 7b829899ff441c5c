import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import zoo.compress
from tests.unit.compress.architectures import build, masked_values
from zoo.compress import loader
from zoo.compress.bits import rounded
from zoo.compress.shrink import shrink
from zoo.compress.tracing import trace
from zoo.compress.writing import write_network
from zoo.errors import CompressionError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A small network with convolutions on disk, its rows and its outputs."""
    net, forward, shape = build("conv_norm")
    generator = torch.Generator().manual_seed(1)
    graph = shrink(trace(forward, masked_values(net, 0.8, generator), shape))
    bits = {}
    for node in graph.weighted()[:2]:
        bits[node.name] = 6
        node.tensors["weight"] = rounded(node.weight, 6)
    directory = tmp_path_factory.mktemp("network")
    write_network(graph, bits, directory, classes=["a", "b"])
    x = torch.randn(5, *shape, generator=generator)
    return directory, x, graph.network(torch.float32)(x)


@pytest.fixture
def files(written, tmp_path):
    """A copy of the network that a test may damage: its description and its tensors."""
    directory = written[0]
    description = json.loads((directory / loader.DESCRIPTION).read_text())
    tensors = load_file(directory / loader.WEIGHTS)

    def refused(match):
        (tmp_path / loader.DESCRIPTION).write_text(json.dumps(description))
        save_file(tensors, tmp_path / loader.WEIGHTS)
        with pytest.raises(CompressionError, match=match) as error:
            zoo.compress.load(tmp_path)
        assert len(str(error.value)) < 600

    return description, tensors, refused


def node(description, op):
    return next(node for node in description["nodes"] if node["op"] == op)


def test_loaded_network_computes_what_was_written(written):
    directory, x, outputs = written
    network = zoo.compress.load(directory)
    torch.testing.assert_close(network(x), outputs, rtol=1e-5, atol=1e-5)
    assert network.metadata == {"classes": ["a", "b"]}
    assert not network.training
    assert torch.equal(zoo.compress.load(directory / loader.DESCRIPTION)(x), network(x))


def test_files_of_format_version_1_stay_readable():
    network = zoo.compress.load(Path(__file__).parent / "version1")
    x = torch.linspace(-1, 1, 24).reshape(2, 12)
    wanted = torch.tensor(
        [[-0.53029233, 0.41018462, -0.3070322], [-0.51704824, 0.42222911, -0.28328437]]
    )
    torch.testing.assert_close(network(x), wanted, rtol=1e-5, atol=1e-6)


def test_network_is_an_ordinary_module(written):
    directory, x, outputs = written
    network = copy.deepcopy(zoo.compress.load(directory)).double()
    torch.testing.assert_close(network(x.double()).float(), outputs, rtol=1e-5, atol=1e-5)
    network(x.double()).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_loader_needs_torch_and_safetensors_alone(written, tmp_path):
    directory, x, outputs = written
    copied = tmp_path / "anywhere.py"
    copied.write_text(Path(loader.__file__).read_text())
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch, anywhere\n"
        f"y = anywhere.load({str(directory)!r})(torch.load({str(tmp_path / 'x.pt')!r}))\n"
        "assert not {'zoo', 'pyro', 'guides', 'pandas'} & set(sys.modules)\n"
        "print(y.tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), outputs, rtol=1e-5, atol=1e-5)


def test_loader_within_the_package_leaves_pyro_alone(written):
    script = (
        "import sys, zoo.compress\n"
        f"zoo.compress.load({str(written[0])!r})\n"
        "assert not {'pyro', 'guides', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], check=True)


# ---------------------------------------------------------------------- damaged files


def test_missing_files_are_refused(tmp_path, written):
    with pytest.raises(CompressionError, match="cannot read"):
        zoo.compress.load(tmp_path / "nowhere")
    (tmp_path / loader.DESCRIPTION).write_text((written[0] / loader.DESCRIPTION).read_text())
    with pytest.raises(CompressionError, match="cannot read the weights"):
        zoo.compress.load(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": "other"}', "[" * 100_000, '"\\ud800"', "\udcff"]
)
def test_files_that_are_no_description_are_refused(tmp_path, text):
    (tmp_path / loader.DESCRIPTION).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CompressionError):
        zoo.compress.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("version", 2, "version 2"),
        ("input", [], "shape of the input"),
        ("input", [64, "a"], "shape of the input"),
        ("input", [2**23, 2**23], "too large"),
        ("input", [65], "do not fit together"),
        ("nodes", [], "1 to"),
        ("nodes", "linear", "1 to"),
        ("nodes", [3], "a node is a mapping"),
        ("output", "nobody", "'nobody' is not a node"),
        ("output", ["x"], "is not a node"),
        ("tensors", [], "'tensors' must be a mapping"),
        ("metadata", 3, "'metadata' must be a mapping"),
    ],
)
def test_bad_top_level_values_are_refused(files, key, value, match):
    description, _, refused = files
    description[key] = value
    refused(match)


@pytest.mark.parametrize(
    ("op", "key", "value", "match"),
    [
        ("conv", "op", "__import__('os')", "unknown operation"),
        ("conv", "op", ["conv"], "unknown operation"),
        ("conv", "name", "../../etc", "letters and digits"),
        ("conv", "name", "input", "two nodes"),
        ("conv", "name", "a" * 500, "letters and digits"),
        ("conv", "inputs", [], "list of inputs"),
        ("conv", "inputs", ["later"], "not before it"),
        ("conv", "inputs", [{}], "not before it"),
        ("conv", "inputs", ["reshape", "reshape"], "takes 1 inputs"),
        ("conv", "stride", [0, 1], "whole numbers"),
        ("conv", "stride", [True, 1], "whole numbers"),
        ("conv", "stride", "22", "whole numbers"),
        ("conv", "stride", [1, 1, 1], "do not fit together|cannot be built"),
        ("conv", "groups", 3, "do not fit together|cannot be built"),
        ("conv", "padding", [-1, 0], "whole numbers"),
        ("conv", "padding", [2**23, 2**23], "too large|makes"),
        ("elu", "alpha", float("nan"), "must be a number"),
        ("elu", "alpha", "1", "must be a number"),
        ("elu", "alpha", True, "must be a number"),
        ("elu", "beta", 1, "the arguments of elu"),
        ("reshape", "shape", [2, 2], "do not fit together"),
        ("reshape", "shape", [2**20, 2**20], "too large"),
    ],
)
def test_bad_nodes_are_refused(files, op, key, value, match):
    description, _, refused = files
    node(description, op)[key] = value
    refused(match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"coding": "pickle"}, "unknown coding"),
        ({"coding": "float32"}, "is not of float32"),
        ({"shape": [3, 3]}, "bytes where"),
        ({"shape": [0]}, "whole numbers"),
        ({"shape": [2**14, 2**14]}, "bytes where"),
        ({"shape": [2**15, 2**15]}, "too large"),
        ({"bits": 3}, "bytes where"),
        ({"bits": 33}, "at most 32"),
        ({"bits": 0}, "whole numbers"),
        ({"sparse": 1}, "true or false"),
        ({"step": "small"}, "must be a number"),
        ({"deflate": True}, "damaged"),
    ],
)
def test_bad_packings_are_refused(files, changes, match):
    description, tensors, refused = files
    name, entry = next(
        (name, entry) for name, entry in description["tensors"].items() if entry["coding"] == "grid"
    )
    if entry.pop("deflate", False):  # start from plain bytes
        tensors[name] = loader._inflated(name, {"deflate": True}, tensors[name])
    entry |= changes
    refused(match)


def test_tensors_that_are_missing_truncated_or_left_over_are_refused(files):
    description, tensors, refused = files
    name = next(n for n, entry in description["tensors"].items() if entry["coding"] == "grid")
    whole = tensors.pop(name)
    refused("lack the tensor")
    tensors[name] = whole[:-1].clone()
    refused("bytes where|damaged")
    tensors[name] = whole.to(torch.int32)
    refused("packed in bytes")
    tensors[name] = whole
    description["tensors"]["other"] = description["tensors"][name]
    tensors["other"] = whole.clone()
    refused("no node uses")
    description["tensors"]["other"] = "zip"
    refused("must be a mapping")


def test_deflated_bytes_cannot_grow_without_bound(files, monkeypatch):
    import zlib

    description, tensors, refused = files
    name = next(n for n, entry in description["tensors"].items() if entry["coding"] == "grid")
    bomb = bytearray(zlib.compress(bytes(10**6), 9))
    tensors[name] = torch.frombuffer(bomb, dtype=torch.uint8)
    description["tensors"][name]["deflate"] = True
    monkeypatch.setattr(loader, "MAX_NUMBERS", 10**4)
    refused("too large")


def test_values_cannot_grow_without_bound(files, monkeypatch):
    description, _, refused = files
    last = description["output"]
    for k in range(60):  # each doubles the units
        grown = {"name": f"grow{k}", "op": "concat", "inputs": [last, last]}
        description["nodes"].append(grown)
        last = f"grow{k}"
    description["output"] = last
    refused("numbers per row|do not fit")


def test_damaged_safetensors_are_refused(written, tmp_path):
    (tmp_path / loader.DESCRIPTION).write_text((written[0] / loader.DESCRIPTION).read_text())
    whole = (written[0] / loader.WEIGHTS).read_bytes()
    for damaged in (b"", whole[:20], whole[:-10], b"\xff" * 200, b"\x80\x04pickle"):
        (tmp_path / loader.WEIGHTS).write_bytes(damaged)
        with pytest.raises(CompressionError, match="cannot read the weights"):
            zoo.compress.load(tmp_path)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3)
)


@given(data=st.data())
def test_no_description_ends_in_anything_but_a_network_or_a_refusal(written, data):
    """Replace parts of a good description by anything at all."""
    description = json.loads((written[0] / loader.DESCRIPTION).read_text())
    tensors = load_file(written[0] / loader.WEIGHTS)
    place = description
    for _ in range(data.draw(st.integers(1, 4))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and data.draw(st.booleans()):
            place = place[key]
        else:
            place[key] = data.draw(values)
            break
    try:
        entries = loader._mapping(description, "tensors")
        unpacked = {name: loader.unpack(name, entries[name], tensors) for name in entries}
        network = loader.Network(description, unpacked)
        network.check()
    except loader.NetworkFileError:
        return
    network(torch.zeros(1, *network.input_shape))
