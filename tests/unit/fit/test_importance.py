"""Which modes a guide covers, and when its own draws serve as a reference."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import zoo
from zoo.fit.importance import corrected_draws, missed_mass
from zoo.infer.importance import Mode

MODES = (Mode({"w": np.array(-2.0)}, 0.5), Mode({"w": np.array(2.0)}, 0.5))


@pytest.mark.parametrize(
    ("centre", "sd", "missed"), [(-2.0, 0.3, 0.5), (2.0, 0.3, 0.5), (0.0, 2.0, 0.0)]
)
def test_a_mode_without_draws_is_missed(centre, sd, missed):
    drawn = {"w": np.random.default_rng(0).normal(centre, sd, size=500)}
    assert missed_mass(MODES, drawn) == missed


def test_draws_of_a_wide_guide_are_corrected_and_those_of_a_narrow_one_are_not():
    rng = np.random.default_rng(0)
    for sd, usable in ((1.5, True), (0.15, False)):
        draws = rng.normal(0.0, sd, size=4000)
        weights = -0.5 * draws**2 + 0.5 * (draws / sd) ** 2
        corrected = corrected_draws(weights)
        assert (corrected is not None) == usable
        if corrected is not None:  # the posterior is a standard normal
            assert (np.exp(corrected) * draws**2).sum() == pytest.approx(1.0, abs=0.1)
    assert corrected_draws(np.array([0.0, np.nan])) is None


def test_a_guide_of_one_of_two_modes_is_not_to_be_read():
    def squares(y):
        theta = pyro.sample("theta", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(theta**2, 4.0), obs=y)

    y = torch.tensor(np.random.default_rng(0).normal(4.0, 4.0, size=20)).float()
    fitted = zoo.fit(squares, args=(y,), num_steps=800, seed=0, progress_bar=False)
    judgement = fitted.judgement()
    assert judgement.verdict.uses["parameters"].level == "fail"
    assert judgement.verdict.sentence.startswith("Do not use this fit to read parameters")
    assert "several modes" in judgement.verdict.sentence
