"""The registry: every method of the zoo, by name.

A method is a function decorated with `register`, alone in its file in `zoo.models`, or in a package
that announces it through the entry-point group ``zoo.models``. Everything derived — the command
line, the contract tests, the README table, the docs — reads this registry; adding a method edits
nothing else.
"""

import fnmatch
import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import UnknownNameError, unknown_name

if TYPE_CHECKING:
    from zoo.network.bnn import BNN

ENTRY_POINT_GROUP = "zoo.models"

Task = Literal["regression", "classification", "counts"]
TASKS: tuple[Task, ...] = ("regression", "classification", "counts")


#: A linear regression with ten inputs and known noise: every parameter is identified.
SMALL_PROBLEM = {"data": "diabetes", "net": "mlp:10-1", "likelihood": "gaussian(noise=0.7)"}


@dataclass(frozen=True)
class Recipe:
    """How a method is trained unless the user says otherwise.

    Attributes
    ----------
    num_steps
        Optimizer steps.
    batch_size
        Rows per step; all rows if there are fewer.
    lr
        Learning rate of Adam at the start.
    schedule
        ``constant``, ``linear`` (constant for half of the run, then linear to zero) or ``cosine``.
    pretrain
        Fraction of the run, at its start, that has no KL: the network is trained as a point, and
        priors that are fitted to trained weights are fitted at its end.
    kl_warmup
        Fraction of the run over which the weight of the KL then rises linearly from zero to one.
    init_scale
        Standard deviation of the posteriors at the start.
    grad_clip
        Largest norm of the gradient, or None.
    """

    num_steps: int = 3000
    batch_size: int = 128
    lr: float = 1e-2
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    pretrain: float = 0.0
    kl_warmup: float = 0.25
    init_scale: float = 0.01
    grad_clip: float | None = None


@dataclass(frozen=True)
class Entry:
    """One method of the zoo.

    Attributes
    ----------
    name
        How users call it: the name of the builder.
    builder
        Returns the Pyro model: ``builder(net, likelihood, **options)``, see
        `zoo.network.bnn.BNNOptions`.
    priors
        Default priors by slot pattern.
    recipe
        How it is trained by default.
    tasks
        What it can be used for.
    linear
        Whether it takes only models that are linear in their parameters.
    exactness
        What it reaches on a conjugate linear regression with a Gaussian prior: ``exact`` (means and
        standard deviations of the posterior), ``mean_field`` (means exact, standard deviations
        those of the best factorised posterior), ``mean_only`` or ``point``.
    truth
        How its ground truth is obtained: ``nuts``, ``exact`` or ``brute_force``.
    small_problem
        Values of the configuration that make a problem on which NUTS is affordable.
    analytic_kl
        Whether every divergence with the default priors has a closed form.
    compresses
        Whether its posterior says which groups of weights can be removed.
    reference
        The publication it comes from.
    expected_failures
        Contract checks that it is known to fail, with the reason; they must really fail.
    """

    name: str
    builder: Callable[..., "BNN"] = field(repr=False)
    priors: Mapping[str, str]
    recipe: Recipe
    reference: str
    tasks: tuple[Task, ...] = TASKS
    linear: bool = False
    exactness: Literal["exact", "mean_field", "mean_only", "point"] = "mean_field"
    truth: Literal["nuts", "exact", "brute_force"] = "brute_force"
    small_problem: Mapping[str, Any] = field(default_factory=lambda: dict(SMALL_PROBLEM))
    analytic_kl: bool = True
    compresses: bool = False
    expected_failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def documentation(self) -> str:
        """The docstring of the method's module: the model in words and formulas."""
        module = importlib.import_module(self.builder.__module__)
        return inspect.getdoc(module) or ""

    @property
    def summary(self) -> str:
        """The first sentence of the documentation."""
        first = " ".join(self.documentation.split("\n\n")[0].split())
        return re.split(r"(?<=[.!?])\s", first)[0]


_ENTRIES: dict[str, Entry] = {}


def register(**fields: Any) -> Callable[[Callable[..., "BNN"]], Callable[..., "BNN"]]:
    """Add a method to the zoo; the keywords are the fields of `Entry`."""

    def decorate(builder: Callable[..., "BNN"]) -> Callable[..., "BNN"]:
        entry = Entry(name=builder.__name__, builder=builder, **fields)
        known = _ENTRIES.get(entry.name)
        if known is not None and known.builder.__module__ != builder.__module__:
            raise ValueError(
                f"the method {entry.name!r} of {builder.__module__} is already registered by "
                f"{known.builder.__module__}"
            )
        _ENTRIES[entry.name] = entry
        return builder

    return decorate


@functools.cache
def _discover() -> None:
    """Import every file of `zoo.models` and every plug-in, so that they register themselves."""
    package = importlib.import_module("zoo.models")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"zoo.models.{module.name}")
    for plugin in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        plugin.load()


def list_models(pattern: str = "*", *, task: str | None = None) -> list[str]:
    """List the names of methods that match a wildcard, in alphabetical order.

    Parameters
    ----------
    pattern
        Shell wildcard, for example ``*horseshoe*``.
    task
        Only methods that can be used for this task.
    """
    _discover()
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    return sorted(
        name
        for name, entry in _ENTRIES.items()
        if fnmatch.fnmatchcase(name, pattern) and (task is None or task in entry.tasks)
    )


def get(name: str) -> Entry:
    """Return the method called ``name``.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    _discover()
    if name not in _ENTRIES:
        raise unknown_name("method", name, _ENTRIES)
    return _ENTRIES[name]


def check_task(entry: Entry, task: str) -> None:
    """Refuse a task that a method is not made for."""
    if task not in entry.tasks:
        raise UnknownNameError(
            f"the method {entry.name!r} is not made for {task}. It takes: {', '.join(entry.tasks)}."
        )
