"""One fit of a case and what the zoo says about it; the only place that knows the verdict's API."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import zoo
from benchmarks.verdict_kinds.case import USES, Case
from zoo.diagnostics import judge
from zoo.fit.store import RunDirectory
from zoo.workflow.outputs import read_judgement

POOR = ("fail", "warn", "unchecked")


@dataclass(frozen=True)
class Judgement:
    """Levels of the verdict, overall and by use, and the checks behind them.

    Keys of `levels` are ``overall`` and the uses; `checks` has, for the same keys, the names of
    checks by level.
    """

    levels: dict[str, str]
    checks: dict[str, dict[str, list[str]]]


def fit_case(case: Case, seed: int, folder: str) -> Any:
    """Fit a case; a table goes through a CSV file and a run directory in the folder."""
    options = {"seed": seed, "progress_bar": False, **case.options}
    if case.table:
        assert case.problem is not None
        path = Path(folder) / "table.csv"
        case.problem.frame().to_csv(path, index=False)
        options |= {"data": str(path), "target": "y", "out": Path(folder) / "run"}
        options |= {"task": case.problem.task}
    torch.manual_seed(seed)  # a fit does not depend on it
    with case.around():
        return zoo.fit(case.method, **options)  # type: ignore[call-overload]


def judge_case(case: Case, fitted: Any) -> Judgement:
    """Return what the zoo says about a fit, without a truth."""
    if case.alter is not None:
        return judgement_of(judge(case.alter(fitted.tree())))
    if case.table:
        return judgement_of(read_judgement(RunDirectory(fitted.path)))
    return judgement_of(fitted.judgement())


def judgement_of(found: Any) -> Judgement:
    """Return the levels of findings and the names of their checks, overall and by use."""
    verdict = found.verdict
    levels = {"overall": verdict.level} | {use: verdict.uses[use].level for use in USES}
    checks = {}
    for key in levels:
        counts = set(verdict.asked if key == "overall" else [key])
        checks[key] = {
            level: sorted(
                {f.check for f in found.findings if f.level == level and counts & set(f.uses)}
            )
            for level in POOR
        }
    return Judgement(levels, checks)


def judged(case: Case, seed: int) -> tuple[Judgement, Any]:
    """Fit a case and judge it."""
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit_case(case, seed, folder)
        return judge_case(case, fitted), fitted
