"""The zoo's Adam is torch's, and its state survives a restart."""

import pytest
import torch
from torch import Tensor

from zoo.infer.svi.optimizer import FusedAdam


def parameters() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(5, 3), (5,), (2, 3, 3, 3)]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def descend(values: list[Tensor], optimizer, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for value in values:
            value.grad = torch.randn(value.shape, generator=generator) + value.detach()
        optimizer.step()


def test_updates_are_those_of_torch_to_the_last_bit():
    ours, theirs = parameters(), parameters()
    descend(ours, FusedAdam(ours, lr=0.01), 20)
    descend(theirs, torch.optim.Adam(theirs, lr=0.01, fused=True), 20)
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)


def test_parameters_without_a_gradient_stay():
    values = parameters()
    before = values[1].detach().clone()
    values[0].grad = torch.ones_like(values[0])
    FusedAdam(values).step()
    assert torch.equal(values[1], before)
    assert not torch.equal(values[0], parameters()[0])


def test_a_restarted_optimizer_continues_to_the_same_bits():
    whole, halves = parameters(), parameters()
    optimizer = FusedAdam(whole)
    descend(whole, optimizer, 5, seed=1)
    descend(whole, optimizer, 5, seed=2)
    first = FusedAdam(halves)
    descend(halves, first, 5, seed=1)
    saved = {name: value.clone() for name, value in first.state().items()}
    second = FusedAdam(halves)
    second.load_state(saved)
    descend(halves, second, 5, seed=2)
    for one, other in zip(whole, halves, strict=True):
        assert torch.equal(one, other)


def test_moments_keep_the_memory_layout_of_their_parameters():
    value = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    optimizer = FusedAdam([value])
    optimizer.load_state({name: v.contiguous() for name, v in optimizer.state().items()})
    assert optimizer.means[0].stride() == value.stride()


@pytest.mark.parametrize("lr", [0.1, 0.001])
def test_the_learning_rate_may_change_between_steps(lr):
    values = parameters()
    optimizer = FusedAdam(values, lr=1.0)
    optimizer.lr = lr
    before = values[0].detach().clone()
    values[0].grad = torch.ones_like(values[0])
    optimizer.step()
    # The first step of Adam moves every element by the learning rate.
    torch.testing.assert_close(before - values[0].detach(), torch.full_like(before, lr))
