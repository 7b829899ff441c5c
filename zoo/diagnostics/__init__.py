"""Diagnostic checks for fits stored as trees in ArviZ's schema.

Every check returns `Finding` objects, and `verdict` summarises them. The package does not depend on
torch or Pyro, so it works with trees saved by any library. The checks use predictions at fixed
inputs, the log joint and identified parameters, but never the weights of a network, because these
are not identified.
"""

import json
from collections.abc import Iterable, Sequence

import xarray

from zoo.diagnostics.approximation import approximation_findings
from zoo.diagnostics.causes import Diagnosis, causes_of
from zoo.diagnostics.compression import compression_findings
from zoo.diagnostics.contents import contents_findings
from zoo.diagnostics.data import data_findings
from zoo.diagnostics.finding import (
    Finding,
    Level,
    format_number,
    refused_truth,
    unchecked,
)
from zoo.diagnostics.held_out import held_out_findings, reliability_curve
from zoo.diagnostics.leave_one_out import loo_findings
from zoo.diagnostics.optimisation import optimisation_findings
from zoo.diagnostics.predictive import posterior_predictive_findings
from zoo.diagnostics.prior import prior_findings
from zoo.diagnostics.quantization import quantization_findings
from zoo.diagnostics.reading import identified
from zoo.diagnostics.restarts import restart_findings
from zoo.diagnostics.robustness import robustness_findings
from zoo.diagnostics.sampling import sampling_findings
from zoo.diagnostics.sbc import sbc_findings
from zoo.diagnostics.sensitivity import sensitivity_findings
from zoo.diagnostics.start import start_findings
from zoo.diagnostics.truth_distance import truth_findings
from zoo.diagnostics.usefulness import usefulness_findings
from zoo.diagnostics.uses import CHECKS, USES, Use, asked_uses, entry_of, kind_of
from zoo.diagnostics.verdict import Judgement, UseVerdict, Verdict, verdict

__all__ = [
    "USES",
    "Diagnosis",
    "Finding",
    "Judgement",
    "Level",
    "Use",
    "UseVerdict",
    "Verdict",
    "approximation_findings",
    "causes_of",
    "compression_findings",
    "data_findings",
    "diagnose",
    "format_number",
    "held_out_findings",
    "judge",
    "loo_findings",
    "optimisation_findings",
    "posterior_predictive_findings",
    "prior_findings",
    "quantization_findings",
    "refused_truth",
    "reliability_curve",
    "restart_findings",
    "robustness_findings",
    "sampling_findings",
    "sbc_findings",
    "sensitivity_findings",
    "start_findings",
    "truth_findings",
    "unchecked",
    "usefulness_findings",
    "verdict",
]


def judge(
    tree: xarray.DataTree, truth: xarray.DataTree | None = None, extra: Iterable[Finding] = ()
) -> Judgement:
    """Run all checks, and name the uses that the fit is made for.

    ``extra`` are findings to add.
    """
    findings = (*diagnose(tree, truth), *extra)
    return Judgement(findings, asked_uses(tree), causes_of(findings, tree))


def diagnose(tree: xarray.DataTree, truth: xarray.DataTree | None = None) -> list[Finding]:
    """Run all checks, in a fixed order.

    Parameters
    ----------
    tree
        A fit: any of the groups ``posterior``, ``prior``, ``sample_stats``, ``log_likelihood``,
        ``log_prior``, ``posterior_predictive``, ``prior_predictive``, ``observed_data``,
        ``held_out``, ``functions``, ``optimization``, ``robustness``, ``references``, ``data``,
        ``rows``, ``prior_statistics`` and ``start``. A check that this kind of fit must have and
        that could not run is a finding of level ``unchecked``.
    truth
        The same quantities from NUTS or in closed form (root attribute ``kind``: ``nuts`` or
        ``exact``).

    Returns
    -------
    list of Finding
        The list is deterministic: checks that simulate use a fixed seed.

    Examples
    --------
    >>> verdict(diagnose(xarray.DataTree())).level
    'unchecked'
    """
    findings = [
        *contents_findings(tree),
        *data_findings(tree),
        *start_findings(tree),
        *optimisation_findings(tree),
        *approximation_findings(tree, has_truth=truth is not None),
    ]
    if truth is not None:
        names = identified(truth) or identified(tree)
        findings += [*sampling_findings(truth, names), *truth_findings(tree, truth)]
    findings += [
        *usefulness_findings(tree),
        *prior_findings(tree),
        *posterior_predictive_findings(tree),
        *loo_findings(tree),
        *held_out_findings(tree),
        *compression_findings(tree),
        *quantization_findings(tree),
        *robustness_findings(tree),
        *sensitivity_findings(tree),
    ]
    return [*findings, *_missing(tree, findings)]


def _missing(tree: xarray.DataTree, findings: Sequence[Finding]) -> list[Finding]:
    """Return a finding for every check that should have run and did not.

    Two root attributes are JSON mappings from checks to reasons: ``not_applicable`` for checks that
    make no sense for this fit, which become notes, and ``unchecked`` for those that could not be
    computed.
    """
    kind = kind_of(tree)
    ran = {entry_of(finding.check) for finding in findings}
    excused, reasons = (
        json.loads(tree.attrs.get(name, "{}")) for name in ("not_applicable", "unchecked")
    )
    missing = [
        Finding(name, "info", None, None, f"Does not apply: {reason}")
        for name, reason in excused.items()
    ]
    ran |= {entry_of(name) for name in excused}
    for check in CHECKS:
        if check.required is not None and check.required(kind) and check not in ran:
            reason = reasons.get(check.shown, f"this check needs {check.needs}.")
            missing.append(unchecked(check.shown, reason, check.remedy))
    return missing
