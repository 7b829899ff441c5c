import pytest
import torch
from torch import nn

from zoo.infer.svi.average import RunningAverage, assign, left_alone


def test_the_average_is_the_mean_of_all_that_was_added():
    parameter = nn.Parameter(torch.zeros(3))
    average, values = RunningAverage([parameter]), torch.randn(7, 3)
    for value in values:
        assign([parameter], [value])
        average.add()
    torch.testing.assert_close(average.values[0], values.mean(0))
    assert not average.values[0].requires_grad


def test_a_stored_average_continues_to_the_same_bits():
    parameter, values = nn.Parameter(torch.zeros(3)), torch.randn(6, 3)
    whole, first = RunningAverage([parameter]), RunningAverage([parameter])
    for index, value in enumerate(values):
        assign([parameter], [value])
        whole.add()
        if index == 2:
            second = RunningAverage([parameter])
            second.load_state(first.state(), first.count)
        (first if index < 2 else second).add()
    assert torch.equal(whole.values[0], second.values[0])
    second.reset()
    assert (second.count, second.values) == (0, [])


def test_a_module_is_left_alone_also_after_an_error():
    module = nn.BatchNorm1d(2).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def change():
        with left_alone(module):
            module.eval()
            module.weight.data.fill_(7.0)
            module.running_mean.fill_(7.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change()
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
