"""Which fits say that their loss is minus the ELBO, and whether it is."""

import pytest

import zoo
from zoo.diagnostics import diagnose

OPTIONS = {"num_steps": 100, "num_samples": 100, "compile": "off", "progress_bar": False}


def objective(method, **options):
    fitted = zoo.fit(method, data="linear", net="linear", **(OPTIONS | options))
    findings = {finding.check: finding for finding in diagnose(fitted.tree())}
    return fitted.loss_is_elbo, findings.get("optimisation.objective")


@pytest.mark.parametrize("method", ["mean_field", "group_horseshoe", "graves", "structured_bp"])
def test_a_bound_on_the_evidence_agrees_with_densities(method):
    claims, finding = objective(method, num_steps=1500)
    assert claims
    assert finding.level == "ok"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sparse_vd", {}),
        ("group_normal_jeffreys", {}),
        ("variational_dropout", {}),
        ("quantized", {}),
        ("laplace", {}),
        ("hypernetwork", {}),
        ("mean_field", {"validation_fraction": 0.2}),
        ("structured_bp", {"options": {"kl_scale": 3.0}}),
    ],
)
def test_other_objectives_are_not_held_against_it(method, options):
    claims, finding = objective(method, **options)
    assert not claims
    assert finding.level == "info"
    assert "Does not apply" in finding.message
