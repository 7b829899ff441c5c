"""The life cycle of a fit: what may happen around the steps of training.

The training loop calls these functions and knows nothing else about a method. Every default does
nothing, so a plain Pyro model and guide need none of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from guides.base import Guide


class TrainingRows(Protocol):
    """All training rows, and the mini-batches that they are seen in."""

    x: Tensor
    y: Tensor

    def full(self) -> Iterator[Tensor]:
        """Yield the inputs of one batch after the other without end, leaving out smaller ones."""


class LifeCycle:
    """What happens before, between and after the steps of training.

    What it changes must be parameters, buffers or extra state of model and guide, so that it is
    stored with them.
    """

    #: Whether there are steps at all; if not, `after_training` makes the guide the posterior.
    takes_steps: bool = True

    def before_training(self, model: Any, guide: Guide) -> None:
        """Prepare model and guide; called once, also before a resumed run."""

    def after_pretraining(self, model: Any, guide: Guide) -> None:
        """Fit priors to pretrained weights; called before the first step that has a KL."""

    def after_update(self, model: Any, guide: Guide, progress: float) -> None:
        """Follow an update of the parameters.

        Parameters
        ----------
        model, guide
            What is fitted.
        progress
            The fraction of the steps that are done.
        """

    def after_training(self, model: Any, guide: Guide, rows: Any) -> None:
        """Do what comes after the last step; ``rows`` are `TrainingRows` if there are any."""

    def upper_parameters(self, model: Any, guide: Guide) -> Sequence[nn.Parameter]:
        """Return the parameters that are fitted to rows of their own, which the others do not see.

        By default there are none, and all parameters see all rows.
        """
        return ()
