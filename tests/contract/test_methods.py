"""Every method of the zoo keeps every promise of the contract."""

import pytest

from zoo.registry import ExpectedFailure, get, list_models
from zoo.testing import CHECKS, run_check


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", list_models())
def test_method_keeps_its_contract(name, check):
    result = run_check(get(name), check)
    assert result.ok, f"{result.status}: {result.detail}"


def test_a_listed_failure_must_really_fail():
    entry = get("mean_field")
    listed = {"documentation": ExpectedFailure("no reference", "for this test")}
    from dataclasses import replace

    result = run_check(replace(entry, expected_failures=listed), "documentation")
    assert not result.ok
    assert result.status == "unexpected pass"


LISTED = {"documentation": ExpectedFailure("the entry has no reference", "why")}


def test_a_listed_failure_with_another_message_is_a_failure():
    from dataclasses import replace

    other = {"documentation": ExpectedFailure("there is no formula", "why")}
    entry = replace(get("mean_field"), reference="", expected_failures=other)
    result = run_check(entry, "documentation")
    assert not result.ok
    assert result.status == "failed"


def test_a_listed_failure_that_fails_is_as_promised():
    from dataclasses import replace

    entry = replace(get("mean_field"), reference="", expected_failures=LISTED)
    result = run_check(entry, "documentation")
    assert result.ok
    assert result.status == "expected failure"
    assert result.detail == "why"
