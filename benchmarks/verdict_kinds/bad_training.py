# ruff: noqa: D401 (docstrings say what a case is)
"""Right models that were trained badly."""

from benchmarks.verdict_kinds.case import Case, Kinds, with_wrong_divergence
from benchmarks.verdict_kinds.shared import (
    RNG,
    fitted_to,
    linear_problem,
    ring_problem,
    wave_problem,
)

BAD_TRAINING = Kinds()


@BAD_TRAINING.add("linear", predict="bad", intervals="bad", parameters="bad", compare="bad")
def ten_steps(rng: RNG) -> Case:
    """Ten steps of training."""
    return fitted_to(linear_problem(rng), num_steps=10)


@BAD_TRAINING.add("network", predict="bad", intervals="bad", compare="bad")
def untrained_network(rng: RNG) -> Case:
    """A learning rate of 1e-6."""
    return fitted_to(wave_problem(rng), net="mlp:2-20-1", lr=1e-6, num_steps=2000)


@BAD_TRAINING.add("network", predict="bad", compare="bad")
def hardly_trained_network(rng: RNG) -> Case:
    """A learning rate of 1e-4."""
    return fitted_to(wave_problem(rng), net="mlp:2-20-1", lr=1e-4, num_steps=1000)


@BAD_TRAINING.add("linear", parameters="bad", compare="bad")
def learning_rate_too_large(rng: RNG) -> Case:
    """A learning rate of 3, which never falls."""
    return fitted_to(linear_problem(rng), lr=3.0, schedule="constant", num_steps=2000)


@BAD_TRAINING.add("linear", predict="good", intervals="good", parameters="bad", compare="bad")
def divergence_times_0_001(rng: RNG) -> Case:
    """The divergence counts 0.001 times: sds far too small, means right."""
    return with_wrong_divergence(fitted_to(linear_problem(rng)), 0.001)


@BAD_TRAINING.add("network", predict="bad", compare="bad")
def divergence_times_50(rng: RNG) -> Case:
    """The divergence of a network counts fifty times, and hides the data."""
    return with_wrong_divergence(fitted_to(ring_problem(rng), net="mlp:2-20-2"), 50.0)


@BAD_TRAINING.add("linear", predict="good", intervals="good", parameters="bad", compare="bad")
def warm_up_never_ends(rng: RNG) -> Case:
    """The weight of the divergence has reached a tenth when training ends."""
    return fitted_to(linear_problem(rng), num_steps=2000, pretrain=0.95, kl_warmup=0.5)


@BAD_TRAINING.add("laplace", predict="bad", parameters="bad")
def laplace_before_the_mode(rng: RNG) -> Case:
    """The method laplace after 20 steps: the curvature of a point that is no mode."""
    return fitted_to(linear_problem(rng), "laplace", num_steps=20)
