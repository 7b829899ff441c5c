"""Operators are found and flipped where they count, and outcomes are what the tests say."""

import sys
import textwrap

import pandas as pd
import pytest

from benchmarks import mutants
from benchmarks.mutants import Selection, Site, Trial, all_sites, sites

SOURCE = '''
"""Text with a + b."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1 + 1

α = 2


def area(width: "1 + 1", height: int = 3 * 2) -> "a < b":
    """Return width * height."""
    if 0 < width <= (height) != 7:
        raise ValueError(f"{width - 1} is too small" + str(width + 1))
    α = "a" + "b" ; total = (width  # a comment with + and *
             ) * height; total -= 1
    return -total // 2 + f"{total + 1}" or total ** 2 @ total % 3
'''


def found(source):
    return [(site.line, site.before) for site in sites("zoo/x.py", textwrap.dedent(source))]


def test_operators_of_code_are_found_and_those_of_text_are_not():
    assert found(SOURCE) == [(11, "*"), (13, "<"), (13, "<="), (13, "!="), (16, "*"), (16, "-=")]


@pytest.mark.parametrize(
    ("source", "flipped"),
    [
        ("a + b", "a - b"),
        ("a - b", "a + b"),
        ("a*b", "a/b"),
        ("a / b", "a * b"),
        ("a < b", "a <= b"),
        ("a <= b", "a < b"),
        ("a > b", "a >= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a != b", "a == b"),
        ("a += b", "a -= b"),
        ("a *= b", "a /= b"),
        ("ä_ö = (a) - (b)", "ä_ö = (a) + (b)"),
        ("x = 'ä', a + b", "x = 'ä', a - b"),
        ("f(a\n  +\n  b)", "f(a\n  -\n  b)"),
    ],
)
def test_one_operator_is_flipped_and_nothing_else(source, flipped):
    (site,) = sites("zoo/x.py", source + "\n")
    assert site.mutated(source + "\n") == flipped + "\n"


@pytest.mark.parametrize("source", ["a and b", "a is b", "a // b", "a ** b", "-a", "f(*a, **b)"])
def test_other_operators_are_left_alone(source):
    assert found(source) == []


def test_the_main_part_of_a_script_is_left_out_and_its_alternative_is_not():
    source = """
    if __name__ == "__main__":
        a + b
    else:
        a * b
    """
    assert found(source) == [(5, "*")]


@pytest.fixture
def house(tmp_path):
    """A small code base: `area` is tested, `margin` only on one side, `tower` not at all."""
    files = {
        "zoo/__init__.py": "from zoo.shapes.area import area\n",
        "zoo/shapes/__init__.py": "",
        "zoo/shapes/area.py": "def area(a, b):\n    return a * b\n",
        "zoo/shapes/margin.py": "def is_wide(a):\n    return a > 3\n",
        "zoo/shapes/deep.py": "from zoo.shapes.area import area\nHALF = 4 / 2\n",
        "zoo/shapes/user.py": "from zoo.shapes.deep import HALF\n",
        "zoo/loop.py": "def count(n):\n    while n > 0:\n        n -= 1\n    return n\n",
        "guides/__init__.py": "",
        "guides/tower.py": "TOP = 1 + 2\n",
        "tests/unit/shapes/test_area.py": """
            from zoo.shapes.area import area

            def test_area():
                assert area(2, 3) == 6
        """,
        "tests/unit/shapes/test_margin.py": """
            from zoo.shapes import margin

            def test_margin():
                assert margin.is_wide(10)
        """,
        "tests/unit/test_loop.py": """
            from zoo.loop import count

            def test_count():
                assert count(3) == 0
        """,
        "tests/unit/other/test_words.py": "NAME = 'zoo.shapes.user'\n\ndef test_it():\n    pass\n",
        "tests/unit/other/test_top.py": "import zoo\nfrom zoo import area\n",
        "tests/contract/test_methods.py": "def test_tower():\n    import guides.tower\n",
        "setup.cfg": "[tool:pytest]\nmarkers =\n    slow: long\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def test_tests_of_a_module_are_those_that_mirror_or_name_it(house):
    selection = Selection(house)
    assert selection.of("zoo/shapes/area.py") == [
        "tests/unit/shapes/test_area.py",
        "tests/unit/other/test_top.py",  # by the name that the package hands on
    ]
    assert selection.of("zoo/shapes/margin.py") == ["tests/unit/shapes/test_margin.py"]
    assert selection.of("zoo/shapes/user.py") == ["tests/unit/other/test_words.py"]


def test_a_module_that_no_test_names_has_those_of_its_users_or_of_its_room(house):
    assert Selection(house).of("zoo/shapes/deep.py") == ["tests/unit/other/test_words.py"]
    (house / "zoo/shapes/user.py").write_text("")
    assert Selection(house).of("zoo/shapes/deep.py") == [
        "tests/unit/shapes/test_area.py",
        "tests/unit/shapes/test_margin.py",
    ]


def test_a_method_has_the_tests_of_its_contract(house):
    trial = Trial(house, timeout=60)
    assert trial._tests("guides/tower.py")[-1] == ["tests/contract", "-k", "tower"]
    assert trial._tests("zoo/models/tower.py")[-1] == ["tests/contract", "-k", "tower"]
    assert trial._tests("zoo/shapes/area.py") == [Selection(house).of("zoo/shapes/area.py")]


def test_a_mutant_is_caught_or_survives_and_the_code_is_as_before(house):
    before = {path: path.read_text() for path in house.rglob("*.py")}
    trial = Trial(house, timeout=60)
    by_file = {site.file: site for site in all_sites(house, ["zoo/shapes/[am]*"])}
    caught = trial.judge(by_file["zoo/shapes/area.py"])
    assert caught["outcome"] == "caught"
    assert caught["failed"] == "tests/unit/shapes/test_area.py::test_area"
    survived = trial.judge(by_file["zoo/shapes/margin.py"])
    assert (survived["outcome"], survived["failed"]) == ("survived", "")
    assert {path: path.read_text() for path in before} == before


def test_a_test_that_fails_anyway_catches_nothing(house):
    (house / "tests/unit/shapes/test_area.py").write_text("def test_area():\n    assert False\n")
    (site,) = sites("zoo/shapes/area.py", (house / "zoo/shapes/area.py").read_text())
    assert Trial(house, timeout=60).judge(site)["outcome"] == "undecided"


@pytest.mark.parametrize(("clean", "outcome"), [(1.0, "timed out"), (6.0, "undecided")])
def test_time_that_runs_out_counts_only_for_tests_that_are_fast(house, monkeypatch, clean, outcome):
    runs = iter([mutants.Run(None, "", 10.0), mutants.Run(0, "", clean)])
    monkeypatch.setattr(mutants, "run_tests", lambda root, tests, timeout: next(runs))
    site = sites("zoo/loop.py", (house / "zoo/loop.py").read_text())[-1]
    assert Trial(house, timeout=10.0).judge(site)["outcome"] == outcome


def test_a_run_that_takes_too_long_is_stopped(house):
    (house / "tests/unit/test_loop.py").write_text(
        "def test_it():\n    while True:\n        pass\n"
    )
    run = mutants.run_tests(house, ["tests/unit/test_loop.py"], timeout=3.0)
    assert run.code is None
    assert run.seconds < 30


def test_rows_are_appended_and_found_again(tmp_path, monkeypatch, capsys, house):
    output = tmp_path / "mutants.csv"
    arguments = ["mutants", "--number", "2", "--only", "zoo/shapes/*", "--output", str(output)]
    judged = []

    def judge(self, site):
        judged.append(site)
        row = {"file": site.file, "line": site.line, "column": site.column}
        return row | {"before": site.before, "after": site.after, "outcome": "survived"}

    monkeypatch.setattr(mutants, "ROOT", house)
    monkeypatch.setattr(mutants, "COPIED", ("zoo", "guides", "tests"))
    monkeypatch.setattr(Trial, "judge", judge)
    monkeypatch.setattr(sys, "argv", [*arguments, "--seed", "1"])
    mutants.main()
    assert mutants.done(output, 1) == set(judged)
    assert mutants.done(output, 2) == set()
    assert len(judged) == 2
    monkeypatch.setattr(sys, "argv", [*arguments[:2], "3", *arguments[3:], "--seed", "1"])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--resume"])
    mutants.main()
    assert len(judged) == len(set(judged)) == 3
    assert "Caught 0 of 3 (0 %) in the first run" in capsys.readouterr().out


def test_retesting_keeps_the_first_outcome_beside_the_second(tmp_path, house, monkeypatch):
    output = tmp_path / "mutants.csv"
    found = all_sites(house, ["zoo/shapes/[am]*"])
    for site, outcome in zip(found, ("caught", "survived"), strict=True):
        place = {name: getattr(site, name) for name in ("file", "line", "column", "before")}
        result = {"after": site.after, "outcome": outcome, "failed": "", "seconds": 1.5}
        mutants.append(output, place | result | {"seed": 2})
    first, judged = mutants.read(output, 2), []

    def judge(self, site):
        judged.append(site)
        return {"outcome": "caught", "failed": "test_margin.py::test_edge", "seconds": 9.0}

    monkeypatch.setattr(Trial, "judge", judge)
    mutants.retest(Trial(house, timeout=60), output, seed=2)
    assert judged == found[1:]
    second = mutants.read(output, 2)
    changed = ["retested", "failed"]
    pd.testing.assert_frame_equal(second.drop(columns=changed), first.drop(columns=changed))
    assert second.retested.tolist() == ["", "caught"]
    assert second.failed.tolist() == ["", "test_margin.py::test_edge"]
    text = mutants.summary(second)
    assert "Caught 1 of 2 (50 %) in the first run" in text
    assert "Caught 2 of 2 (100 %) after tests were added" in text
    assert "zoo/shapes/margin.py" not in text


def test_retesting_leaves_equivalent_mutants_and_other_seeds_alone(tmp_path, house):
    output = tmp_path / "mutants.csv"
    row = {"file": "zoo/shapes/margin.py", "line": 2, "column": 13, "outcome": "survived"}
    mutants.append(output, row | {"seed": 2, "note": "equivalent: for a test"})
    mutants.append(output, row | {"seed": 1})
    before = output.read_text()
    mutants.retest(Trial(house, timeout=60), output, seed=2)
    assert output.read_text() == before


def test_summary_leaves_out_what_is_equivalent_or_undecided():
    rows = [("caught", ""), ("timed out", ""), ("survived", "equivalent: the same number")]
    rows += [("survived", ""), ("undecided", "")]
    table = pd.DataFrame(rows, columns=["outcome", "note"]).assign(retested="")
    table[["file", "line", "before", "after"]] = ["zoo/x.py", 3, "+", "-"]
    text = mutants.summary(table)
    assert "Caught 2 of 3 (67 %)" in text
    assert text.count("zoo/x.py:3 + -> -") == 1


def test_an_operator_that_moved_is_not_flipped():
    with pytest.raises(AssertionError, match="is not where it was"):
        Site("zoo/x.py", 1, 2, "+").mutated("a * b\n")
