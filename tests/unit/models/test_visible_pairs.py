"""What holds for the Pyro model and the Pyro guide of every method."""

import pyro.poutine as poutine
import pytest
import torch

from zoo.registry import get, list_models
from zoo.testing.problems import model_and_guide

pytestmark = pytest.mark.usefixtures("module_local_params")


@pytest.fixture(params=list_models())
def pair(request):
    return model_and_guide(get(request.param))


def test_guide_does_not_change_the_model_while_it_samples(pair):
    model, guide = pair
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.1)
    before = {name: torch.as_tensor(v).clone() for name, v in model.state_dict().items()}
    guide()
    guide.draw(2)
    guide.medians()
    for name, value in model.state_dict().items():
        assert torch.equal(torch.as_tensor(value), before[name]), name


def test_guide_samples_what_its_distributions_say(pair):
    _, guide = pair
    trace = poutine.trace(guide).get_trace()
    sampled = {name for name, site in trace.nodes.items() if site["type"] == "sample"}
    assert set(guide.distributions()) == sampled
    assert set(guide()) == {name for name in sampled if not name.startswith("_")}
