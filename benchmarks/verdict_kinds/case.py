"""A case, one fit with its data, and a kind: cases of one cause, with a label for each use."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray

from benchmarks.verdict_kinds.problems import Problem

USES = ("predict", "intervals", "parameters", "compare", "compress")

#: ``unknown``: the fit may be good, but what would show it is missing, so "ok" is wrong.
Label = Literal["good", "bad", "unknown"]


@dataclass(frozen=True)
class Case:
    """The arguments of one `zoo.fit`, and what is known about its data.

    Attributes
    ----------
    method
        A method of the zoo, or a Pyro model.
    options
        Arguments of `zoo.fit`, the data among them.
    problem
        How the data were generated; None for Pyro models.
    table
        Whether the problem is fitted from a CSV file, as on the command line.
    around
        A context in which the fit is trained, for example one with a wrong objective.
    alter
        A change of the stored tree before it is judged.
    reference
        Right posterior of the parameters, by site; by default one that follows from the problem.
    """

    method: str | Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    table: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    alter: Callable[[xarray.DataTree], xarray.DataTree] | None = None
    reference: Callable[[Any], Mapping[str, np.ndarray]] | None = None


@dataclass(frozen=True)
class Kind:
    """Cases of one cause.

    Attributes
    ----------
    name
        The name of the function that makes the cases.
    task
        What is fitted, to count kinds by task.
    labels
        Label of each use; uses without a label are not judged.
    has_overall
        Whether the fit as a whole is judged. It is not if a use without a label is asked for.
    make
        Returns a case from a generator of random numbers.
    """

    name: str
    task: str
    labels: Mapping[str, Label]
    make: Callable[[np.random.Generator], Case]
    has_overall: bool = True

    @property
    def overall(self) -> Label | None:
        """The worst label of the uses, without comparing, which no fit is made for."""
        found = {label for use, label in self.labels.items() if use != "compare"}
        if not self.has_overall:
            return None
        return next(label for label in ("bad", "unknown", "good") if label in found)

    @property
    def description(self) -> str:
        """What the cases are."""
        return " ".join((self.make.__doc__ or "").split())

    def case(self, seed: int) -> Case:
        """Return the case of a seed; kinds do not share random numbers."""
        return self.make(np.random.default_rng([seed, zlib.crc32(self.name.encode())]))


class Kinds(dict[str, Kind]):
    """Kinds by name; a function becomes a kind by the decorator `add`."""

    def add(
        self, task: str, *, overall: bool = True, **labels: Label
    ) -> Callable[[Callable[[np.random.Generator], Case]], Kind]:
        """Add a kind; the other keywords are the labels of its uses."""
        unknown = set(labels) - set(USES)
        if unknown or not labels:
            raise ValueError(f"labels are for {', '.join(USES)}. Got {', '.join(labels)!r}.")

        def decorate(make: Callable[[np.random.Generator], Case]) -> Kind:
            name = make.__name__
            if name in self:
                raise ValueError(f"there are two kinds called {name!r}")
            self[name] = Kind(name, task, labels, make, overall)
            return self[name]

        return decorate


@contextmanager
def wrong_divergence(factor: float) -> Iterator[None]:
    """Train with a divergence that has a wrong weight; estimates of the ELBO stay right."""
    from zoo.infer.svi import loop
    from zoo.infer.svi.objective import LatentScale, Objective

    class WrongObjective(Objective):
        def forward(self, *batch: Any) -> Any:
            self.check_once(*batch)
            scale = LatentScale(factor * self.kl_weight)
            return self.elbo.differentiable_loss(scale(self.model), scale(self.guide), *batch)

    right = loop.Objective
    assert right is Objective, "the training loop no longer makes its objective by this name"
    loop.Objective = WrongObjective  # type: ignore[misc]
    try:
        yield
    finally:
        loop.Objective = right  # type: ignore[misc]


def with_wrong_divergence(case: Case, factor: float) -> Case:
    """Return the case, trained with a divergence that has a wrong weight."""
    return replace(case, around=partial(wrong_divergence, factor))


def without(*groups: str) -> Callable[[xarray.DataTree], xarray.DataTree]:
    """Return a function that removes groups from a tree."""

    def alter(tree: xarray.DataTree) -> xarray.DataTree:
        kept = {
            name: node for name, node in tree.to_dict().items() if name.strip("/") not in groups
        }
        smaller = xarray.DataTree.from_dict(kept)
        smaller.attrs = dict(tree.attrs)
        return smaller

    return alter
