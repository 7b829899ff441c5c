"""Likelihoods: the distribution of observations given the outputs of a network.

A likelihood turns the output ``f`` of a network, shape ``(..., n, outputs)``, into a distribution
of ``n`` observations. Its scale, if it has one, is the slot ``noise``: learned as a point, fixed,
or Bayesian if it is given a prior.

Outputs are not always identified: adding one number to all logits of a softmax changes no
prediction, and its posterior is that of the prior. `Likelihood.functions` maps outputs to the
quantities that fits are compared by, and names them.
"""

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from zoo.errors import ConfigError, unknown_name
from zoo.network.slots import Slot
from zoo.parsing.calls import Call, parse_call

#: Rates of counts are exponentials; beyond this log-rate float32 is about to overflow.
MAX_LOG_RATE = 30.0
#: Smallest standard deviation a network may predict, in units of the target.
MIN_SCALE = 1e-4
#: Smallest fixed noise; below it the density of a float32 residual overflows.
MIN_NOISE = 1e-10
#: Differences of a probability below half a percentage point change no decision.
PROBABILITY_RESOLUTION = 0.005


class Likelihood(nn.Module):
    """Base class; the subclass's name in snake case is what users write."""

    #: The tasks it is for; the first likelihood that lists a task is its default.
    tasks: ClassVar[tuple[str, ...]]
    #: Differences of `functions` that are small against this are of no interest.
    resolution: ClassVar[float] = 0.0

    def slots(self) -> list[Slot]:
        """Return the parameters of the likelihood that may be given a prior."""
        return []

    def num_outputs(self, num_classes: int | None) -> int:
        """Width of the network's last layer."""
        return 1

    @abstractmethod
    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return the distribution of the observations given network outputs ``f``.

        ``noise`` is a draw of the noise slot, if it is Bayesian, broadcastable to ``(..., 1)``.
        """

    def functions(self, f: Tensor, classes: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the identified functions of the outputs by name, each of shape ``(..., n)``.

        They determine the distribution of the observations up to the noise, and are determined by
        it. ``classes`` are the names of the classes. The default is for outputs that are identified
        themselves.
        """
        names = [f"output {k}" for k in range(f.shape[-1])] if f.shape[-1] > 1 else ["output"]
        return dict(zip(names, f.unbind(-1), strict=True))

    def check_outputs(self, f: Tensor, num_classes: int | None) -> None:
        """Refuse a network whose output has the wrong shape."""
        wanted = self.num_outputs(num_classes)
        if f.dim() < 2 or f.shape[-1] != wanted:
            raise ConfigError(
                f"the likelihood {spell(self)!r} needs a network with output shape "
                f"(batch, {wanted}). Got {tuple(f.shape)}."
            )


class _Located(Likelihood):
    """A real-valued observation around ``f``, with noise that is fixed, learned or predicted."""

    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    fixed_noise: Tensor

    def __init__(self, noise: float | str = "learned") -> None:
        super().__init__()
        if isinstance(noise, str) and noise not in ("learned", "heteroscedastic"):
            raise ConfigError(
                "the noise of a likelihood must be learned, heteroscedastic or a positive number. "
                f"Got {noise!r}."
            )
        if not isinstance(noise, str) and not noise >= MIN_NOISE:
            raise ConfigError(
                f"the noise of a likelihood must be at least {MIN_NOISE:g}. Got {noise}."
            )
        self.heteroscedastic = noise == "heteroscedastic"
        self.learned = noise == "learned"
        self.fixed = None if isinstance(noise, str) else float(noise)
        if self.learned:
            self.log_noise = nn.Parameter(torch.tensor(-0.5))
        elif self.fixed is not None:
            self.register_buffer("fixed_noise", torch.tensor(self.fixed))

    def slots(self) -> list[Slot]:
        """Return the noise scale, if there is one number to learn."""
        if not self.learned:
            return []
        value = self.log_noise.detach().exp()
        return [Slot("noise", value, "likelihood", positive=True, by_name=True)]

    def num_outputs(self, num_classes: int | None) -> int:
        """One location, and a scale when the network predicts it."""
        return 2 if self.heteroscedastic else 1

    def loc_scale(self, f: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Split the network's output into location and scale."""
        if self.heteroscedastic:
            return f[..., 0], softplus(f[..., 1]) + MIN_SCALE
        if noise is not None:
            return f[..., 0], noise
        return f[..., 0], self.log_noise.exp() if self.learned else self.fixed_noise

    def functions(self, f: Tensor, classes: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the mean, and the log of the sd if the network predicts it.

        Both are in units of the standardised target. The scale of a Student's t counts as its sd.
        """
        if not self.heteroscedastic:
            return {"mean": f[..., 0]}
        loc, scale = self.loc_scale(f, None)
        return {"mean": loc, "log sd": scale.log()}


class Gaussian(_Located):
    r""":math:`y \sim N(f, \sigma^2)`, or :math:`N(f_0, \mathrm{softplus}(f_1)^2)`."""

    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return a Normal around the network's output."""
        return dist.Normal(*self.loc_scale(f, noise))


class StudentT(_Located):
    r""":math:`y \sim t_\nu(f, \sigma)`: like Gaussian, but outliers pull less."""

    df: Tensor

    def __init__(self, df: float = 4.0, noise: float | str = "learned") -> None:
        super().__init__(noise)
        if not isinstance(df, int | float) or not df > 2:
            raise ConfigError(
                f"the df of student_t must be above 2, or there is no variance. Got {df!r}."
            )
        self.register_buffer("df", torch.tensor(float(df)))

    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return a Student's t around the network's output."""
        return dist.StudentT(self.df, *self.loc_scale(f, noise))


class _Classes(Likelihood):
    """Classes, compared by their probabilities.

    Probabilities and differences of logits are both identified. Probabilities are the better scale
    for means, sds and distances. A logit that goes from 15 to 20 changes no prediction, but is a
    shift of several posterior sds if the classes are separable, where the scale of the logits comes
    from the prior alone. Probabilities are bounded, so their moments exist and their distances are
    not dominated by such rows. Sds of a saturated probability are tiny, so differences below
    `PROBABILITY_RESOLUTION` do not count: the diagnostics compare probabilities as if they were
    measured with an error of this sd. Ranks, and so R-hat of two classes, are the same on both
    scales.
    """

    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    resolution: ClassVar[float] = PROBABILITY_RESOLUTION

    @abstractmethod
    def probabilities(self, f: Tensor) -> Tensor:
        """Return the probabilities of the classes, one column each."""

    def functions(self, f: Tensor, classes: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the probability of every class; of two classes, that of the second."""
        columns = self.probabilities(f).unbind(-1)
        names = [f"P({name})" for name in classes or range(len(columns))]
        known = dict(zip(names, columns, strict=True))
        return known if len(known) > 2 else {names[-1]: columns[-1]}


class Categorical(_Classes):
    r""":math:`y \sim \mathrm{Cat}(\mathrm{softmax}(f))`.

    The default for three and more classes, and for networks with two outputs.
    """

    def num_outputs(self, num_classes: int | None) -> int:
        """One logit per class."""
        if num_classes is None:
            raise ConfigError("the likelihood 'categorical' needs classes: the target has none.")
        return num_classes

    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return a Categorical with the network's outputs as logits."""
        return dist.Categorical(logits=f)

    def probabilities(self, f: Tensor) -> Tensor:
        """Return the softmax of the outputs."""
        return f.softmax(-1)


class Bernoulli(_Classes):
    r""":math:`y \sim \mathrm{Bernoulli}(\mathrm{sigmoid}(f))`, for two classes and one output.

    The default for two classes. A softmax with two outputs has twice the unknowns in the last
    layer, of which only the differences are identified. It is the same model if its priors are
    narrower: the difference of two independent :math:`N(0, s^2)` is :math:`N(0, 2 s^2)`.
    """

    def num_outputs(self, num_classes: int | None) -> int:
        """One logit, of the second class."""
        if num_classes != 2:
            raise ConfigError(
                f"the likelihood 'bernoulli' needs exactly two classes. Got {num_classes}; "
                "use 'categorical' for more."
            )
        return 1

    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return a Bernoulli with the network's output as logit."""
        return dist.Bernoulli(logits=f[..., 0])

    def probabilities(self, f: Tensor) -> Tensor:
        """Return the probabilities of both classes."""
        return torch.cat([-f, f], -1).sigmoid()


class Poisson(Likelihood):
    r""":math:`y \sim \mathrm{Poisson}(e^f)`, for counts."""

    tasks: ClassVar[tuple[str, ...]] = ("counts",)

    def distribution(self, f: Tensor, noise: Tensor | None = None) -> Any:
        """Return a Poisson with the exponential of the network's output as rate."""
        return dist.Poisson(f[..., 0].clamp(max=MAX_LOG_RATE).exp())

    def functions(self, f: Tensor, classes: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return the log of the rate."""
        return {"log rate": f[..., 0].clamp(max=MAX_LOG_RATE)}


LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
}


def default_likelihood(task: str, num_classes: int | None = None) -> str:
    """Return the name of the default likelihood of a task; two classes have one logit."""
    if task == "classification" and num_classes == 2:
        return "bernoulli"
    for name, cls in LIKELIHOODS.items():
        if task in cls.tasks:
            return name
    raise unknown_name("task", task, {task for cls in LIKELIHOODS.values() for task in cls.tasks})


def parse_likelihood(source: str) -> Likelihood:
    """Build a likelihood from text such as ``gaussian(noise=0.1)`` or ``student_t(df=5)``."""
    call = parse_call(
        source, what="likelihood", example="gaussian or gaussian(noise=0.1)", error=ConfigError
    )
    if call.name not in LIKELIHOODS:
        raise unknown_name("likelihood", call.name, LIKELIHOODS)
    cls = LIKELIHOODS[call.name]
    names = (
        list(inspect.signature(cls).parameters) if cls.__init__ is not nn.Module.__init__ else []
    )
    values = dict(call.keywords)
    if call.positional or not set(values) <= set(names):
        accepted = ", ".join(f"{name}=..." for name in names) or "no options"
        raise ConfigError(f"the likelihood {call.name!r} takes {accepted}. Got {source!r}.")
    if any(isinstance(value, Call | tuple) for value in values.values()):
        raise ConfigError(
            f"options of a likelihood are numbers or names. Got {source!r}. "
            "A prior for the noise goes to --prior 'noise=HalfNormal(1)'."
        )
    return cls(**values)


def spell(likelihood: Likelihood) -> str:
    """Return the name of a likelihood as users write it; for a user's own, its class name."""
    names = {cls: name for name, cls in LIKELIHOODS.items()}
    return names.get(type(likelihood), type(likelihood).__name__)
