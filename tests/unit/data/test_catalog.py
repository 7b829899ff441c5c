import subprocess
import sys

import pytest

from zoo.data import checksum, describe, list_datasets, load
from zoo.errors import DataError, UnknownNameError

# A split, an encoding or a generator that changes would break comparisons with old runs.
CHECKSUMS = {
    "breast_cancer": "825badd8293155b25430716cbad89359a15a5a2f6682d84518db93f85a0dc9cd",
    "diabetes": "2e2413865d846c0eff104d9817244b34274b3fbaedf5e304023f3ff0faf79e52",
    "digits": "088aa50eb484eede132715d9093918440a041719e584cc2aa41426639682f7bb",
    "heteroscedastic_sine": "f2d1a87ed7d8b9e23dfa18d8ed0be61e8bcbfb81e69c5d04b335a87fb65e99a8",
    "linear": "8d1657a39523da2e91bf95a60f3783e1f50129f95601bc908f1e45b5398fff55",
    "polynomial": "d9c736c36119a3df054c983004e73925bc57fd67cd777da78cb22526daf8a5a9",
    "sparse_linear": "5f54e2de3be5a52a98ea01e132a7778c72efcb384fbe792a8baabe4adf2a241b",
    "two_moons": "956e0a135ab3af37982ba9ba59574b010e7e41539b300049485daa86c1c1a745",
    "wine": "8ac688f7c318ce43d452b033690bfa3ee59f32766e0b587944c5d2913990d618",
}


def test_names_are_sorted_and_complete():
    assert list_datasets() == [
        "breast_cancer",
        "diabetes",
        "digits",
        "fashion_mnist",
        "heteroscedastic_sine",
        "linear",
        "mnist",
        "polynomial",
        "sparse_linear",
        "two_moons",
        "wine",
    ]


@pytest.mark.parametrize("name", list_datasets())
def test_every_set_is_described(name):
    info = describe(name)
    assert info.name == name
    assert info.source
    assert info.description.endswith(".")


@pytest.mark.parametrize("name", sorted(CHECKSUMS))
def test_named_sets_never_change(name):
    assert checksum(load(name)) == CHECKSUMS[name]


@pytest.mark.parametrize("ask", [load, describe])
def test_unknown_names_are_refused_with_a_hint(ask):
    with pytest.raises(UnknownNameError, match=r"unknown data set 'wien'. Did you mean 'wine'"):
        ask("wien")


@pytest.mark.parametrize("name", ["table.csv", "folder/table", "table.txt"])
def test_what_looks_like_a_path_is_a_path(name):
    with pytest.raises(DataError, match=f"there is no file '{name}'"):
        load(name)


def test_a_file_needs_a_target(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"needs target=, the column to predict. Columns: 'a', 'b'"):
        load(path)


def test_images_have_no_columns_to_ignore():
    with pytest.raises(DataError, match=r"ignore is for tables"):
        load("mnist", ignore=["pixel_0_0"])


def test_only_numpy_and_pandas_are_imported():
    heavy = "{'torch', 'pyro', 'sklearn', 'scipy'}"
    code = (
        "import sys, types; before = set(sys.modules)\n"
        "package = types.ModuleType('zoo'); package.__path__ = [p + '/zoo' for p in sys.path]\n"
        "sys.modules['zoo'] = package\n"  # the package itself may import more
        f"import zoo.data; zoo.data.describe('wine'); print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr
