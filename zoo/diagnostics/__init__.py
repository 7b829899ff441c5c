"""Checks that read a tree in ArviZ's schema and say, in numbers and words, whether to trust it.

Every check returns `Finding` objects; `verdict` sums them up. Nothing here knows torch or Pyro, so
a tree saved by any library can be judged. What is judged are functions (predictions at fixed
inputs), the log joint and identified parameters, never the weights of a network: they are not
identified.
"""

import xarray

from zoo.diagnostics.approximation import approximation_findings
from zoo.diagnostics.finding import (
    Finding,
    Level,
    Verdict,
    format_number,
    from_json,
    refused_truth,
    to_json,
    verdict,
)
from zoo.diagnostics.held_out import held_out_findings, reliability_curve
from zoo.diagnostics.leave_one_out import loo_findings
from zoo.diagnostics.optimisation import optimisation_findings, restart_findings
from zoo.diagnostics.predictive import predictive_findings
from zoo.diagnostics.quantization import quantization_findings
from zoo.diagnostics.reading import identified
from zoo.diagnostics.robustness import robustness_findings
from zoo.diagnostics.sampling import sampling_findings
from zoo.diagnostics.sbc import sbc_findings
from zoo.diagnostics.sensitivity import sensitivity_findings
from zoo.diagnostics.truth_distance import truth_findings

__all__ = [
    "Finding",
    "Level",
    "Verdict",
    "approximation_findings",
    "diagnose",
    "format_number",
    "from_json",
    "held_out_findings",
    "loo_findings",
    "optimisation_findings",
    "predictive_findings",
    "quantization_findings",
    "refused_truth",
    "reliability_curve",
    "restart_findings",
    "robustness_findings",
    "sampling_findings",
    "sbc_findings",
    "sensitivity_findings",
    "to_json",
    "truth_findings",
    "verdict",
]


def diagnose(tree: xarray.DataTree, truth: xarray.DataTree | None = None) -> list[Finding]:
    """Run every check that the groups of a tree allow, in a fixed order.

    Parameters
    ----------
    tree
        A fit: any of the groups ``posterior``, ``prior``, ``sample_stats``, ``log_likelihood``,
        ``log_prior``, ``posterior_predictive``, ``prior_predictive``, ``observed_data``,
        ``held_out``, ``functions``, ``optimization`` and ``robustness``. Checks without their
        groups are skipped.
    truth
        The same quantities by NUTS or in closed form (root attribute ``kind``: ``nuts`` or
        ``exact``).

    Returns
    -------
    list of Finding
        The same list for the same trees: checks that simulate have a fixed seed.

    Examples
    --------
    >>> verdict(diagnose(xarray.DataTree())).level
    'info'
    """
    findings = [
        *optimisation_findings(tree),
        *approximation_findings(tree, has_truth=truth is not None),
    ]
    if truth is not None:
        names = identified(truth) or identified(tree)
        findings += [*sampling_findings(truth, names), *truth_findings(tree, truth)]
    return [
        *findings,
        *predictive_findings(tree),
        *loo_findings(tree),
        *held_out_findings(tree),
        *quantization_findings(tree),
        *robustness_findings(tree),
        *sensitivity_findings(tree),
    ]
