import numpy as np

from zoo.diagnostics.reading import varies


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
