"""Uncertainty of trained networks with batch normalisation, without training."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from torch import Tensor, nn

from guides.base import Guide
from zoo.errors import ConfigError
from zoo.fit.build import create
from zoo.infer.predict.draws import Draws, Prediction, draw_posterior, predictive
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.schedule import batch_rows
from zoo.likelihoods import Bernoulli, Categorical, parse_likelihood
from zoo.models.stochastic_batch_norm import NUM_BATCHES, StochasticBatchNormNetwork
from zoo.network.bnn import BNN
from zoo.network.nets.normalised import has_batch_norm

#: Rows, or rows with their targets, as from a data loader.
Batch = Tensor | tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class RandomNetwork:
    """A trained network with random statistics, as a Pyro model and a guide.

    All draws use the same seed.
    """

    model: BNN
    guide: Guide
    seed: int = 0

    def draws(self, num_samples: int = 100) -> Draws:
        """Return draws of the random values of the network."""
        return draw_posterior(self.model, self.guide, num_samples, seed=self.seed)

    def outputs(self, x: Tensor, num_samples: int = 100) -> Tensor:
        """Return the network's outputs, shape ``(draws, rows, outputs)``."""
        return network_outputs(self.model, self.draws(num_samples).slots, x)

    def predict(self, x: Tensor, num_samples: int = 100) -> Prediction:
        """Predict encoded rows, averaged over draws."""
        f = self.outputs(x, num_samples)
        classes: tuple[str, ...] = ()
        if isinstance(self.model.likelihood, Categorical | Bernoulli):
            classes = tuple(map(str, range(max(2, f.shape[-1]))))
        return predictive(self.model, f, None, seed=self.seed, classes=classes)


def stochastic_batch_norm(
    net: nn.Module,
    x: Tensor | Iterable[Batch],
    *,
    batch_size: int = 16,
    likelihood: str = "categorical",
    num_batches: int = NUM_BATCHES,
    seed: int = 0,
) -> RandomNetwork:
    """Make the batch statistics of a trained network random; its parameters do not change.

    Predictions draw the statistics from a distribution with the moments of those of mini-batches of
    the training rows (see the method ``stochastic_batch_norm``).

    Parameters
    ----------
    net
        A trained network with batch normalisation. It is copied.
    x
        Encoded training rows, or batches of them, such as a `torch.utils.data.DataLoader`; batches
        smaller than the first are left out.
    batch_size
        Rows per batch, if ``x`` is a tensor, usually that of training. Smaller batches give larger
        variances.
    likelihood
        ``"categorical"``, ``"bernoulli"``, ``"gaussian(noise=0.1)"``, ...
    num_batches
        Number of batches from which the moments are computed.
    seed
        Seed of the batches and the draws.

    Examples
    --------
    >>> import torch, zoo
    >>> net = torch.nn.Sequential(
    ...     torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    ... )
    >>> x = torch.randn(200, 3)
    >>> noisy = zoo.stochastic_batch_norm(net, x, batch_size=16)
    >>> noisy.predict(x[:5]).probabilities.shape
    (5, 2)
    """
    if not has_batch_norm(net):
        raise ConfigError(
            f"the network {type(net).__name__} has no batch normalisation with running statistics: "
            "there is nothing that could be made random."
        )
    if num_batches < 2:
        raise ConfigError(f"num_batches must be at least 2. Got {num_batches}.")
    parsed = parse_likelihood(likelihood)
    if parsed.slots():
        raise ConfigError(
            f"a trained network has no noise left to learn: write {likelihood}(noise=0.1) with its "
            f"number. Got {likelihood!r}."
        )
    like = next(net.parameters())
    num_rows = len(x) if isinstance(x, Tensor) else 1
    model = create("stochastic_batch_norm", net, likelihood=parsed.to(like), num_data=num_rows)
    assert isinstance(model, StochasticBatchNormNetwork)
    guide = model.guide(init_scale=1.0).to(like.device)
    batches = _cut(x, batch_size, seed) if isinstance(x, Tensor) else _alike(x)
    model.to(like.device).match(guide, islice(batches, num_batches))
    return RandomNetwork(model.eval(), guide.eval(), seed)


def _cut(x: Tensor, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of rows in random order, endlessly."""
    if not 2 <= batch_size <= len(x):
        raise ConfigError(
            f"batch_size must be between 2 and the number of rows, {len(x)}. Got {batch_size}."
        )
    for step in count():
        rows = batch_rows(len(x), batch_size, step, seed, x.device)
        if len(rows) == batch_size:
            yield x[rows]


def _alike(batches: Iterable[Batch]) -> Iterator[Tensor]:
    """Yield the rows of batches as large as the first, endlessly if they can be read again."""
    size, seen = 0, True
    while seen:
        seen = False
        for batch in batches:
            rows = batch if isinstance(batch, Tensor) else batch[0]
            size = size or len(rows)
            if len(rows) == size:
                seen = True
                yield rows
