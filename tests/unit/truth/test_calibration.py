"""Ranks of simulation-based calibration count draws that are nearly independent."""

import numpy as np
import pytest

from zoo.infer.nuts.sampler import Draws
from zoo.truth import calibration


@pytest.mark.parametrize(("lowest", "rank"), [(1e6, 0), (-1e6, 99), (-148.5, 50)])
def test_a_rank_is_the_number_of_thinned_draws_below_the_truth(monkeypatch, lowest, rank):
    def sample(model, data, *, num_chains, num_samples, **options):
        ramp = lowest + np.arange(num_samples, dtype=float)
        values = {"0.weight": np.zeros((1, len(ramp), 1, 3)), "0.bias": np.zeros((1, len(ramp), 1))}
        for value in values.values():
            value += ramp.reshape(1, -1, *[1] * (value.ndim - 2))
        return Draws(values, {}, 0.0, 0.0, 0.0, {})

    monkeypatch.setattr(calibration, "sample_nuts", sample)
    # Every third draw is used: the last ones beside zero are -1.5 and 1.5.
    ranks = calibration.simulate("mean_field", "nuts", {"*": "Normal(0, 0.1)"}, 0, 0)
    assert {ranks[f"0.weight[{k}]"] for k in range(3)} | {ranks["0.bias[0]"]} == {rank}
