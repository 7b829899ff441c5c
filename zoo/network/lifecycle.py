"""The life cycle of a fit: hooks around the steps of training.

The training loop calls these methods and knows nothing else about a method. Every default does
nothing, so a plain Pyro model and guide need none of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from guides.base import Guide


class TrainingRows(Protocol):
    """All training rows, and their mini-batches."""

    x: Tensor
    y: Tensor

    def full(self) -> Iterator[Tensor]:
        """Yield the inputs of batches without end, except those that are smaller than others."""


class LifeCycle:
    """Hooks before, between and after the steps of training.

    They may change parameters, buffers and extra state of model and guide, which are stored.
    """

    #: Whether there are steps; if not, `after_training` sets the guide to the posterior.
    takes_steps: bool = True
    #: Whether the average of the iterates may replace the last one. Not if the method makes its
    #: own average.
    averages: bool = True

    @property
    def last_phase(self) -> float:
        """Fraction of the nominal length that follows convergence, at a constant learning rate."""
        return 0.0

    def before_training(self, model: Any, guide: Guide) -> None:
        """Prepare model and guide; called once, also before a resumed run."""

    def after_pretraining(self, model: Any, guide: Guide) -> None:
        """Fit priors to pretrained weights; called before the first step that has a KL."""

    def after_update(self, model: Any, guide: Guide, progress: float) -> None:
        """Follow an update of the parameters, after the given fraction of the phases.

        In a run that ends by itself, the fraction grows to one, or to the beginning of the last
        phase, and stays there until convergence. Also called for averages of iterates.
        """

    def after_step(self, model: Any, guide: Guide, rows: Any, step: int) -> None:
        """Follow a step, with its number and all training rows at hand."""

    def after_training(self, model: Any, guide: Guide, rows: Any) -> None:
        """Finish after the last step; ``rows`` are `TrainingRows` if there are any."""

    def upper_parameters(self, model: Any, guide: Guide) -> Sequence[nn.Parameter]:
        """Return the parameters that are fitted to separate rows; by default none."""
        return ()
