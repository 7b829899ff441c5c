"""Which estimator a fit takes."""

import pytest
import torch
from torch import nn

import zoo
from zoo.data import from_arrays
from zoo.errors import ConfigError
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.infer.svi.elbo import MeanFieldELBO


class Tied(nn.Module):
    """Uses one weight twice."""

    def __init__(self):
        super().__init__()
        self.square = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.square(torch.tanh(self.square(x)))))


def convolutional():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 1)
    )


def chosen(net, estimator="auto", method="mean_field", **options):
    X = torch.randn(40, 4).numpy()
    config = make_config(method=method, net=None, num_steps=5, estimator=estimator, **options)
    prepared = prepare(config, dataset=from_arrays(X, X.sum(1)), net=net)
    assert prepared.svi.objective.elbo.local == (prepared.assembly.config.estimator == "local")
    return prepared.assembly.config.estimator


def test_auto_samples_outputs_of_linear_layers_and_weights_of_convolutions():
    assert chosen(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))) == "local"
    assert chosen(convolutional()) == "weights"


def test_a_prior_under_which_weights_become_noise_samples_outputs_of_convolutions():
    assert chosen(convolutional(), method="sparse_vd") == "local"
    assert chosen(convolutional(), "weights", method="sparse_vd") == "weights"
    assert chosen(Tied(), method="sparse_vd") == "weights"
    swapped = {"*weight": "Normal(0, 1)"}
    assert chosen(convolutional(), method="sparse_vd", priors=swapped) == "weights"
    assert chosen(convolutional(), priors={"*weight": "GroupHorseshoe()"}) == "local"


def test_a_wish_is_granted():
    assert chosen(convolutional(), "local") == "local"
    assert chosen(nn.Linear(4, 1), "weights") == "weights"


def test_a_weight_that_is_used_twice_is_sampled_itself():
    assert chosen(Tied()) == "weights"
    with pytest.raises(ConfigError, match=r"'square\.weight' was integrated out by 'linear'"):
        chosen(Tied(), "local")


@pytest.mark.parametrize("estimator", ["local", "weights"])
def test_the_estimator_is_written_down_and_repeats(tmp_path, estimator):
    options = {"data": "wine", "num_steps": 10, "num_samples": 5, "progress_bar": False}
    first = zoo.fit("mean_field", estimator=estimator, out=tmp_path / "run", **options)
    assert f"estimator: {estimator}" in (tmp_path / "run" / "config.yaml").read_text()
    again = zoo.fit("mean_field", estimator=estimator, **options)
    assert torch.equal(first.losses, again.losses)


def test_local_noise_and_vectorised_particles_exclude_each_other():
    with pytest.raises(ValueError, match="vectorised particles need weights"):
        MeanFieldELBO(local=True, vectorize_particles=True, max_plate_nesting=1)
