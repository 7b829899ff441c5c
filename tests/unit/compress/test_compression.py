"""Fits that are compressed: what is measured is what is there."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.compress import costs
from zoo.compress.bits import round_weights
from zoo.compress.compression import compress_fit
from zoo.compress.costs import layer_rows, rates
from zoo.compress.shrink import shrink
from zoo.compress.tracing import trace
from zoo.compress.writing import Packed, pack, write_network
from zoo.errors import CompressionError
from zoo.network.nets import mlp


@pytest.fixture(scope="module")
def digits():
    return zoo.fit(
        "group_horseshoe",
        data="digits",
        net="mlp:64-30-20-10",
        num_steps=250,
        num_samples=10,
        compile="off",
        progress_bar=False,
    )


@pytest.fixture(scope="module")
def compressed(digits):
    return digits.compress()


def test_network_has_the_units_that_were_kept(compressed):
    summary = compressed.summary
    slots = summary["choice"]["slots"]
    kept = [slots[name]["kept"] for name in ("0.weight", "2.weight", "4.weight")]
    assert min(kept) >= 1
    assert kept[0] < 64
    smaller = summary["smaller"]
    assert smaller["weights"] <= kept[0] * kept[1] + kept[1] * kept[2] + kept[2] * 10
    assert smaller["flops"] == 2 * smaller["weights"]
    assert summary["original"]["weights"] == 64 * 30 + 30 * 20 + 20 * 10
    assert summary["original"]["parameters"] == 64 * 30 + 30 * 20 + 20 * 10 + 60
    assert summary["packed"]["weights"] <= smaller["weights"] < summary["original"]["weights"]
    assert summary["packed"]["bytes"] < summary["original"]["bytes"] / 2


def test_smaller_network_is_the_masked_one(digits, compressed):
    assert compressed.summary["difference"] <= 1e-5
    # The same once more, with the model itself and all test rows.
    values = {name: value.float() for name, value in _means(digits, compressed.choice.view).items()}
    x = torch.as_tensor(digits.dataset.X_test, dtype=torch.float32)
    with torch.no_grad():
        wanted = digits.assembly.model.evaluate(values, x)
    off = digits.compress(bits="off")
    assert off.choice.view.to_dict() == compressed.choice.view.to_dict()
    assert (off.network(x) - wanted).abs().max() <= 1e-5 * (1 + wanted.abs().max())
    assert off.summary["smaller"]["test"] == pytest.approx(off.summary["packed"]["test"], abs=1e-4)


def _means(fitted, view):
    parts = fitted.assembly.guide.by_name()
    means = {}
    for name, part in parts.items():
        means[name] = (
            part.weight_moments()[0] if name.endswith("weight") else part[name].loc.double()
        )
    return view.prune({name: value.detach() for name, value in means.items()})


def test_scores_are_those_of_the_network(digits, compressed):
    x = torch.as_tensor(digits.dataset.X_test, dtype=torch.float32)
    with torch.no_grad():
        logits = compressed.network(x).double()
    targets = torch.as_tensor(digits.dataset.y_test)
    scores = compressed.summary["packed"]["test"]
    assert scores["accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean())
    assert scores["nll"] == pytest.approx(
        float(nn.functional.cross_entropy(logits, targets)), rel=1e-5
    )
    posterior = compressed.summary["posterior"]["test"]
    assert posterior == digits.posterior_scores(digits.dataset.X_test, digits.dataset.y_test)


def test_saved_network_is_the_one_that_was_measured(compressed, tmp_path):
    compressed.save(tmp_path)
    network = zoo.compress.load(tmp_path)
    x = torch.randn(4, 64)
    assert torch.equal(network(x), compressed.network(x))
    assert (
        sum(file.stat().st_size for file in tmp_path.iterdir())
        == (compressed.summary["packed"]["bytes"])
    )
    assert network.metadata["classes"] == [str(digit) for digit in range(10)]
    assert network.metadata["likelihood"] == "categorical"


def test_table_shows_the_numbers(compressed):
    text = compressed.table()
    assert f"{compressed.summary['packed']['bytes']:,}" in text
    for words in ("FLOPs per row", "milliseconds, 256 rows", "test accuracy", "fast prediction"):
        assert words in text


def test_tolerance_holds_on_validation_rows(digits):
    result = digits.compress(tolerance=0.05)
    assert result.choice.rule == "tolerance"
    assert result.summary["validation"] == {"rows": len(digits.dataset.X_train), "held_out": False}
    stricter = digits.compress(tolerance=0.0)
    assert stricter.summary["smaller"]["weights"] >= result.summary["smaller"]["weights"]


def test_test_rows_decide_nothing(digits):
    dataset = digits.dataset
    other = replace(dataset, X_test=-dataset.X_test, y_test=np.roll(dataset.y_test, 1))
    one, two = (digits.compress(data, tolerance=0.05) for data in (dataset, other))
    assert one.choice.to_dict() == two.choice.to_dict()
    assert one.rounded.bits == two.rounded.bits
    assert one.summary["packed"]["test"] != two.summary["packed"]["test"]


def test_bad_options_are_refused(digits):
    with pytest.raises(CompressionError, match="not both"):
        digits.compress(threshold=1.0, tolerance=0.1)
    with pytest.raises(CompressionError, match="unknown rule for bits 'many'"):
        digits.compress(bits="many")


def test_method_without_groups_is_only_rounded():
    fitted = zoo.fit(
        "mean_field", data="diabetes", num_steps=100, num_samples=10, compile="off",
        progress_bar=False,
    )  # fmt: skip
    result = fitted.compress()
    assert result.summary["smaller"]["weights"] == result.summary["original"]["weights"]
    assert result.summary["packed"]["bytes"] < result.summary["original"]["bytes"]
    assert set(result.summary["packed"]["test"]) == {"rmse", "nll", "crps"}


class Blocks(nn.Module):
    """Convolutions with batch normalisation and a residual sum."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x.reshape(-1, 1, 8, 8))))
        x = nn.functional.max_pool2d(x + torch.relu(self.conv(x)), 2)
        return self.head(x.flatten(1))


def test_residual_network_with_batch_normalisation(tmp_path):
    fitted = zoo.fit(
        "group_horseshoe",
        data="digits",
        net=Blocks(),
        num_steps=60,
        num_samples=4,
        compile="off",
        progress_bar=False,
    )
    result = fitted.compress(threshold={"conv.weight": 0.0, "head.weight": 0.0})
    assert result.summary["difference"] <= 1e-4
    names = [node.op for node in result.rounded.graph]
    assert "add" in names
    result.save(tmp_path)
    x = torch.randn(3, 64)
    assert torch.equal(zoo.compress.load(tmp_path)(x), result.network(x))


def test_network_that_cannot_be_traced_is_refused():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 4)

        def forward(self, x):
            return self.layer(x).sort(1).values[:, :1]

    fitted = zoo.fit(
        "group_horseshoe", data="diabetes", net=Sorted(), num_steps=20, num_samples=4,
        compile="off", progress_bar=False,
    )  # fmt: skip
    with pytest.raises(CompressionError, match="sort"):
        fitted.compress()


# ---------------------------------------------------------------------- accounting


def graph_of(weights):
    net = mlp([weights[0].shape[1], *(len(weight) for weight in weights)]).double()
    with torch.no_grad():
        for layer, weight in zip(net[::2], weights, strict=True):
            layer.weight.copy_(weight)
    values = {name: p.detach() for name, p in net.named_parameters()}
    graph = trace(
        lambda v, x: torch.func.functional_call(net, v, (x,)), values, (weights[0].shape[1],)
    )
    return net, graph


def test_rates_of_the_literature_by_hand(tmp_path):
    first, second = torch.full((4, 6), 0.3), torch.full((2, 4), 0.8)
    first[:, 3:] = 0  # half of the inputs
    second[:, 2:] = 0  # half of the units
    net, graph = graph_of([first, second])
    graph["0"].variance = torch.full((4, 6), 0.01, dtype=torch.float64)  # 5 bits
    graph["2"].variance = torch.full((2, 4), 0.001, dtype=torch.float64)  # 8 bits
    small = shrink(graph)
    rounded = round_weights(small, "variance")
    assert rounded.bits == {"0": 5, "2": 8}
    assert rounded.exponent == 1  # the largest weight is 0.8
    packed = write_network(rounded.graph, rounded.bits, tmp_path)
    found = rates(net, small, rounded, packed)
    original, left = 24 + 8, 2 * 3 + 2 * 2
    assert found["weights_left_percent"] == pytest.approx(100 * left / original)
    assert found["pruning"] == pytest.approx(original / left)
    assert found["fast_prediction"] == pytest.approx(32 * original / (6 * 7 + 4 * 10))
    stored = sum(packed[name].num_bytes for name in ("0.weight", "2.weight"))
    assert found["maximum"] == pytest.approx(4 * original / stored)


def test_zeros_inside_a_layer_pay_a_bit_per_position():
    weight = torch.randn(8, 8).double()
    weight[torch.rand(8, 8) < 0.7] = 0
    weight[:, 0] = weight[0] = 1.0  # every unit is heard
    net, graph = graph_of([weight])
    small = shrink(graph)
    left = int(weight.count_nonzero())
    found = rates(net, small, round_weights(small, "off"), {"0.weight": pack(small["0"].weight)})
    assert found["pruning"] == pytest.approx(32 * 64 / (32 * left + 64))
    assert found["fast_prediction"] == 1.0


@pytest.mark.parametrize("num_bytes", [1, 5, 16])
def test_maximum_compression_counts_eight_bits_per_byte_of_the_file(num_bytes):
    net, graph = graph_of([torch.randn(4, 8)])
    stored = {"0.weight": Packed({"coding": "raw"}, torch.zeros(num_bytes, dtype=torch.uint8))}
    found = rates(net, graph, round_weights(graph, "off"), stored)
    assert found["maximum"] == 32 * 32 / (8 * num_bytes)


def test_code_book_is_part_of_the_maximum():
    net, graph = graph_of([torch.randn(4, 8)])
    book = {"codebook": torch.zeros(3)}
    stored = {"0.weight": Packed({"coding": "codebook"}, torch.zeros(8, dtype=torch.uint8), book)}
    found = rates(net, graph, round_weights(graph, "off"), stored)
    assert found["maximum"] == 32 * 32 / (8 * 8 + 3 * 32)


@pytest.mark.parametrize(
    ("words", "bits"), [((-0.5, 0.5), 1), ((-0.5, 0.0, 0.5), 2), ((-0.5, 0.0, 0.25, 0.5, 1.0), 3)]
)
def test_weights_on_a_code_book_count_the_bits_of_a_word(words, bits):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(len(words), (32, 32), generator=generator)
    net, graph = graph_of([torch.tensor(words)[codes]])
    packed = {"0.weight": pack(graph["0"].weight)}
    assert packed["0.weight"].entry["coding"] == "codebook"
    off = round_weights(graph, "off")
    found = rates(net, graph, off, packed)
    size = 32 * 32
    assert found["fast_prediction"] == 32 * size / (bits * size + 32 * len(words))
    assert layer_rows(graph, off, packed)[0]["counted_bits"] == bits


def test_bits_are_added_until_rounding_is_good_enough():
    _, graph = graph_of([torch.full((3, 4), 0.3)])
    graph["0"].variance = torch.ones(3, 4, dtype=torch.float64)  # no bits at all
    asked = []

    def is_good(candidate):
        asked.append(float(candidate["0"].weight.max()))
        return abs(asked[-1] - 0.3) < 0.02

    result = round_weights(graph, "variance", is_good=is_good)
    assert (result.extra, result.bits) == (4, {"0": 4})
    assert asked == [0.0, 0.5, 0.25, 0.25, 0.3125]


def test_rounding_that_is_never_good_enough_is_left_out():
    _, graph = graph_of([torch.full((3, 4), 0.3)])
    graph["0"].variance = torch.ones(3, 4, dtype=torch.float64)
    result = round_weights(graph, "variance", is_good=lambda candidate: False)
    assert result.bits == {}
    assert result.counted_bits("0") == 32


def test_flops_of_a_convolution_count_every_position():
    net = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(48, 5))
    net = net.double()
    values = {name: p.detach() for name, p in net.named_parameters()}
    graph = trace(lambda v, x: torch.func.functional_call(net, v, (x,)), values, (2, 8, 8))
    assert costs.sizes(graph)["flops"] == 2 * (2 * 3 * 9 * 16 + 48 * 5)


def test_latency_takes_turns_and_returns_medians(monkeypatch):
    clock = iter(np.arange(10_000) * 1e-3)
    monkeypatch.setattr(costs.time, "perf_counter", lambda: float(next(clock)))
    calls = []
    found = costs.measure_latency(
        {"a": lambda x: calls.append(("a", len(x))), "b": lambda x: calls.append(("b", len(x)))},
        (3,),
        batch_sizes=(1, 4),
        max_seconds=0.05,
    )
    assert [name for name, _ in calls[:6]] == ["a", "b", "a", "b", "a", "b"]
    assert {size for _, size in calls} == {1, 4}
    assert math.isclose(found["a"]["1"], 1.0)


def test_compress_fit_without_data_is_refused(digits):
    with pytest.raises(CompressionError, match="pass dataset="):
        compress_fit(replace(digits, dataset=None))
