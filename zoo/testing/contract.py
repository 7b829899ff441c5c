"""The contract of a method, as checks: ``zoo check NAME``.

Every entry of the registry must pass every check, unless it lists one under ``expected_failures``
with a message and a reason; then the check must fail with that message. The last three have an
exact answer: a conjugate regression, the KL in the loss against an independent integral, and the
optimum of the ELBO of the method's own prior and posterior.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyro
import torch

from zoo.errors import ZooError
from zoo.registry import Entry, get
from zoo.testing import behaviour, exact, optimum, structure

#: Every check by name, in the order in which they run. A check raises AssertionError, or returns
#: what it measured.
CHECKS: dict[str, Callable[[Entry], str | None]] = {
    function.__name__: function
    for function in (
        structure.builds_for_every_task,
        structure.site_names,
        structure.guide_covers_model,
        structure.log_likelihood_matches_trace,
        structure.minibatch_is_unbiased,
        structure.gradients_reach_every_parameter,
        structure.follows_dtype_and_device,
        structure.prior_swap,
        structure.pickles_to_worker,
        structure.documentation,
        behaviour.seed_reproduces,
        behaviour.tree_schema,
        behaviour.save_load,
        behaviour.config_round_trip,
        behaviour.predict_shapes,
        behaviour.beats_the_prior,
        exact.agrees_with_stock_elbo,
        exact.recovers_linear_regression,
        exact.kl_is_exact,
        optimum.reaches_its_own_optimum,
    )
}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    check: str
    #: Whether the outcome is the expected one.
    ok: bool
    #: ``ok``, ``failed``, ``expected failure`` or ``unexpected pass``.
    status: str
    #: The measured value, or the error.
    detail: str = ""


def run_checks(name: str) -> Iterator[CheckResult]:
    """Run every check on a method, one after the other."""
    entry = get(name)
    for check_name in CHECKS:
        yield run_check(entry, check_name)


def run_check(entry: Entry, check_name: str) -> CheckResult:
    """Run one check with a fixed seed; the state of torch and Pyro is restored afterwards."""
    expected = entry.expected_failures.get(check_name)
    with torch.random.fork_rng(), pyro.settings.context(module_local_params=True):
        torch.manual_seed(0)
        try:
            detail = CHECKS[check_name](entry) or ""
        except (AssertionError, ZooError) as error:  # a method may refuse what a check asks for
            message = " ".join(str(error).split())
            if expected is not None and re.search(expected.message, message):
                return CheckResult(check_name, True, "expected failure", expected.reason)
            return CheckResult(check_name, False, "failed", message)
    if expected is not None:
        detail = f"listed as failing: {expected.reason}"
        return CheckResult(check_name, False, "unexpected pass", detail)
    return CheckResult(check_name, True, "ok", detail)
