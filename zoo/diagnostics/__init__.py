"""Diagnostic checks for fits stored as trees in ArviZ's schema.

Every check returns `Finding` objects, and `verdict` summarises them. The package does not depend on
torch or Pyro, so it works with trees saved by any library. The checks use predictions at fixed
inputs, the log joint and identified parameters, but never the weights of a network, because these
are not identified.
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
    """Run all checks for which the tree has data, in a fixed order.

    Parameters
    ----------
    tree
        A fit: any of the groups ``posterior``, ``prior``, ``sample_stats``, ``log_likelihood``,
        ``log_prior``, ``posterior_predictive``, ``prior_predictive``, ``observed_data``,
        ``held_out``, ``functions``, ``optimization`` and ``robustness``. Checks whose groups are
        missing are skipped.
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
