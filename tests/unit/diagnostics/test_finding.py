import math
import subprocess
import sys

import numpy as np
import pytest

from zoo.diagnostics import Finding, diagnose, format_number
from zoo.diagnostics.finding import format_estimate, format_share, level_of, unchecked


def finding(level="ok", check="a.b", value=1.0, threshold=2.0):
    return Finding(check, level, value, threshold, "A message.", "An advice.", "Somebody (2000)")


def test_numbers_become_floats():
    made = finding(value=np.float32(0.5), threshold=3)
    assert (made.value, made.threshold) == (0.5, 3.0)
    assert type(made.value) is type(made.threshold) is float


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level": "bad"}, "level is 'bad'; known: ok, info, unchecked, warn, fail"),
        ({"check": ""}, "needs the name of its check"),
        ({"message": ""}, "needs the name of its check and a message"),
        ({"level": "fail", "advice": ""}, "needs advice"),
        ({"value": "1"}, "value is '1' instead of a number"),
        ({"threshold": True}, "threshold is True instead of a number"),
        ({"source": None}, "source is None instead of text"),
    ],
)
def test_impossible_findings_are_refused(fields, message):
    good = {
        "check": "a.b",
        "level": "ok",
        "value": None,
        "threshold": None,
        "message": "m",
        "advice": "",
        "source": "",
    }
    with pytest.raises(ValueError, match=message):
        Finding(**good | fields)


def test_what_is_ok_needs_no_advice():
    assert finding("ok").advice == ""
    assert finding("info").advice == "An advice."


@pytest.mark.parametrize(
    ("value", "level"), [(0.9, "ok"), (1.0, "ok"), (1.1, "warn"), (2.1, "fail"), (math.nan, "ok")]
)
def test_levels_begin_above_their_limits(value, level):
    assert level_of(value, 1.0, 2.0) == level
    assert level_of(value, 1.0) == ("warn" if level == "fail" else level)
    assert level_of(value, 1.0, judged=False) == ("ok" if level == "ok" else "info")


def test_a_check_that_could_not_run_says_why_and_what_would_help():
    made = unchecked("a.b", "there are no rows.", "Hold out rows.")
    assert (made.level, made.message) == ("unchecked", "There are no rows.")
    assert made.advice == "Hold out rows."


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.12345, "0.123"),
        (1234.5, "1234"),
        (-98765.4, "-98765"),
        (12345678.0, "1.23e+07"),
        (2.0, "2"),
        (0.0, "0"),
        (1e-7, "1e-07"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (None, "–"),
    ],
)
def test_numbers_are_written_with_three_digits(number, text):
    assert format_number(number) == text


def test_shares_are_percentages():
    assert format_share(0.0345) == "3.45 %"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (-123.456, 0.0312, "-123.456 ± 0.031"),
        (-123.456, 0.312, "-123.46 ± 0.31"),
        (-123.456, 3.12, "-123.5 ± 3.1"),
        (-123456.7, 312.0, "-123457 ± 312"),
        (-123.456, 0.0, "-123.456 ± 0"),
        (-123.456, math.nan, "-123.456 ± nan"),
        (math.nan, math.nan, "nan ± nan"),
    ],
)
def test_estimates_have_the_decimals_of_their_errors(value, error, text):
    assert format_estimate(value, error) == text


def test_diagnostics_import_neither_torch_nor_pyro():
    script = "import sys, zoo.diagnostics; sys.exit(bool({'torch', 'pyro'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_empty_tree_has_no_findings():
    import xarray

    assert diagnose(xarray.DataTree()) == []
    assert diagnose(xarray.DataTree(), xarray.DataTree()) == []
