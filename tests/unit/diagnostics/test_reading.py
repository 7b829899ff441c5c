import numpy as np
import pytest
import xarray

from zoo.diagnostics.reading import chains, labels, varies


def test_columns_vary_unless_they_are_constant_up_to_rounding_or_not_finite():
    columns = {
        "zero": [0.0, 0.0, 0.0],
        "constant": [0.1 + 0.2, 0.3, 0.3],
        "tiny": [1e-300, 2e-300, 3e-300],
        "infinite": [1.0, np.inf, 2.0],
        "normal": [1.0, 1.001, 0.999],
    }
    found = dict(zip(columns, varies(np.array(list(columns.values())).T), strict=True))
    assert found == dict.fromkeys(("zero", "constant", "infinite"), False) | dict.fromkeys(
        ("tiny", "normal"), True
    )


def functions(values, **attributes):
    dims = ("chain", "draw", "point", "output")
    coords = {"point": [0, 17], "output": ["P(a)", "P(b)", "P(c)"]}
    return xarray.DataArray(values, coords, dims, name="f", attrs=attributes)


def test_functions_are_named_by_output_and_row():
    values = np.arange(24.0).reshape(2, 2, 2, 3)
    named = dict(zip(labels(functions(values)), chains(functions(values))[0, 0], strict=True))
    assert named == {
        "P(a) at row 0": 0.0, "P(b) at row 0": 1.0, "P(c) at row 0": 2.0,
        "P(a) at row 17": 3.0, "P(b) at row 17": 4.0, "P(c) at row 17": 5.0,
    }  # fmt: skip
    assert labels(functions(values).drop_vars(["point", "output"]))[4] == "f[1, 1]"


def test_a_resolution_is_an_error_of_this_sd_and_always_the_same():
    values = np.zeros((4, 1000, 2, 3))
    read = chains(functions(values, resolution=0.005))
    # Relative error of the sd of 24,000 draws: 1 / sqrt(48,000); four of them.
    assert read.std() == pytest.approx(0.005, rel=4 / np.sqrt(48_000))
    np.testing.assert_array_equal(read, chains(functions(values, resolution=0.005)))
    assert not np.array_equal(read, chains(functions(values + 1, resolution=0.005)) - 1)
    assert (chains(functions(values, resolution=0.0)) == 0).all()
