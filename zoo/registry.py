"""The registry: every method of the zoo, by name.

A method is a subclass of `zoo.network.method.Method` decorated with `register`, in its own file in
`zoo.models`, or in a package that announces it through the entry-point group ``zoo.models``. The
command line, the contract tests, the README table and the docs read this registry. Priors and
guides register themselves when their modules are imported; `discover` imports all of them.
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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from zoo.errors import UnknownNameError, unknown_name

if TYPE_CHECKING:
    from zoo.network.method import Method

#: Entry-point groups of plug-ins, and the packages whose files register themselves.
ENTRY_POINT_GROUPS = ("zoo.models", "zoo.priors", "zoo.guides")
PACKAGES = ("zoo.priors", "zoo.models", "guides")

Task = Literal["regression", "classification", "counts"]
TASKS: tuple[Task, ...] = ("regression", "classification", "counts")


#: A linear regression with ten inputs and known noise: every parameter is identified.
SMALL_PROBLEM = {"data": "diabetes", "net": "mlp:10-1", "likelihood": "gaussian(noise=0.7)"}


@dataclass(frozen=True)
class Recipe:
    """How a method is trained by default.

    Attributes
    ----------
    num_steps
        Number of optimizer steps. For a run that ends by itself it is the nominal length, to which
        fractions of the run refer.
    batch_size
        Rows per step; all rows if there are fewer.
    lr
        Initial learning rate of Adam.
    schedule
        ``constant``, ``linear`` (constant for half of the run, then linear to zero) or ``cosine``.
        A run that ends by itself lowers the learning rate in rounds, or not at all if it is
        ``constant``.
    pretrain
        Initial fraction of the run without a KL: the network is trained as a point, and priors that
        are fitted to trained weights are fitted at its end.
    kl_warmup
        Fraction of the run over which the weight of the KL then rises linearly from zero to one.
    init_scale
        Initial standard deviation of the posteriors.
    grad_clip
        Largest norm of the gradient, or None.
    until_converged
        Whether the run ends by itself, see `zoo.infer.svi.convergence`.
    max_steps, max_seconds
        The budget of a run that ends by itself; None for any number of seconds.
    """

    num_steps: int = 3000
    batch_size: int = 128
    lr: float = 1e-2
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    pretrain: float = 0.0
    kl_warmup: float = 0.25
    init_scale: float = 0.01
    grad_clip: float | None = None
    until_converged: bool = False
    max_steps: int = 200_000
    max_seconds: float | None = None


@dataclass(frozen=True)
class ExpectedFailure:
    """A contract check that a method is known to fail, and why."""

    #: A regular expression that the message of the failure must match.
    message: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """One method of the zoo.

    Attributes
    ----------
    name
        The name of the class in snake case, without ``Method``.
    method
        The class.
    priors
        Default priors by slot pattern.
    recipe
        How it is trained by default.
    reference
        The publication it comes from.
    tasks
        What it can be used for.
    linear
        Whether it is only for models that are linear in their parameters.
    exactness
        What is exact on a conjugate linear regression with a Gaussian prior: ``exact`` (means and
        standard deviations of the posterior), ``mean_field`` (means exact, standard deviations
        those of the best factorised posterior), ``mean_only`` or ``point``.
    small_problem
        Configuration of a problem on which NUTS is affordable.
    analytic_kl
        Whether every divergence with the default priors has a closed form.
    compresses
        Whether its posterior shows which groups of weights can be removed.
    expected_failures
        Contract checks that it is known to fail; they must fail in this way.
    """

    name: str
    method: "type[Method]" = field(repr=False)
    priors: Mapping[str, str]
    recipe: Recipe
    reference: str
    tasks: tuple[Task, ...] = TASKS
    linear: bool = False
    exactness: Literal["exact", "mean_field", "mean_only", "point"] = "mean_field"
    small_problem: Mapping[str, Any] = field(default_factory=lambda: dict(SMALL_PROBLEM))
    analytic_kl: bool = True
    compresses: bool = False
    expected_failures: Mapping[str, "ExpectedFailure"] = field(default_factory=dict)

    @property
    def documentation(self) -> str:
        """The docstring of the method's module: the model in words and formulas."""
        module = importlib.import_module(self.method.__module__)
        return inspect.getdoc(module) or ""

    @property
    def summary(self) -> str:
        """The first sentence of the documentation."""
        first = " ".join(self.documentation.split("\n\n")[0].split())
        return re.split(r"(?<=[.!?])\s", first)[0]


_ENTRIES: dict[str, Entry] = {}


T = TypeVar("T", bound="type[Method]")


def register(**fields: Any) -> Callable[[T], T]:
    """Add a method to the zoo; the keywords are the fields of `Entry`."""

    def decorate(method: T) -> T:
        name = method_name(method.__name__)
        known = _ENTRIES.get(name)
        if known is not None and known.method.__module__ != method.__module__:
            raise ValueError(
                f"the method {name!r} of {method.__module__} is already registered by "
                f"{known.method.__module__}"
            )
        _ENTRIES[name] = Entry(name=name, method=method, **fields)
        method.priors = _ENTRIES[name].priors
        return method

    return decorate


def method_name(class_name: str) -> str:
    """Return the name of a method from that of its class: SparseVDMethod is sparse_vd."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name.removesuffix("Method"))
    return words.lower()


@functools.cache
def discover() -> None:
    """Import every method, prior and guide, plug-ins included, so that they register themselves."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    for group in ENTRY_POINT_GROUPS:
        for plugin in importlib.metadata.entry_points(group=group):
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
    discover()
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    return sorted(
        name
        for name, entry in _ENTRIES.items()
        if fnmatch.fnmatchcase(name, pattern) and (task is None or task in entry.tasks)
    )


def get(name: str) -> Entry:
    """Return the method called ``name``, or raise an `UnknownNameError`."""
    discover()
    if name not in _ENTRIES:
        raise unknown_name("method", name, _ENTRIES)
    return _ENTRIES[name]


def check_task(entry: Entry, task: str) -> None:
    """Refuse a task that a method is not for."""
    if task not in entry.tasks:
        raise UnknownNameError(
            f"the method {entry.name!r} is not made for {task}. It takes: {', '.join(entry.tasks)}."
        )
