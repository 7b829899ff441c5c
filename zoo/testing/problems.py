"""Small problems for the checks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from guides.base import Composite
from zoo.data import Dataset, from_arrays
from zoo.fit.build import create
from zoo.fit.config import make_config
from zoo.fit.prepare import prepare
from zoo.likelihoods import Likelihood, default_likelihood, parse_likelihood
from zoo.network.bnn import BNN
from zoo.network.nets import mlp
from zoo.registry import Entry
from zoo.workflow.fitting import run
from zoo.workflow.result import Fit

#: Rows of the small problems.
ROWS = 24


def small_data(task: str, rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a problem that any method can learn."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    f = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    if task == "classification":
        return x, (f > 0).long() + (f > 1.5).long()
    if task == "counts":
        return x, torch.poisson(f.clamp(max=2).exp(), generator=generator)
    return x, f + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


def small_model(
    entry: Entry, task: str | None = None, *, priors: Mapping[str, str] | None = None
) -> BNN:
    """Return the method on a network with four hidden units, or none, in float64."""
    likelihood, sizes = _likelihood_and_sizes(entry, task or entry.tasks[0])
    net = mlp(sizes).double()
    return create(entry.name, net, likelihood=likelihood.double(), num_data=ROWS, priors=priors)


def _likelihood_and_sizes(entry: Entry, task: str) -> tuple[Likelihood, list[int]]:
    likelihood = parse_likelihood(default_likelihood(task))
    outputs = likelihood.num_outputs(3 if task == "classification" else None)
    return likelihood, [3, outputs] if entry.linear else [3, 4, outputs]


def model_and_guide(
    entry: Entry, task: str | None = None, *, priors: Mapping[str, str] | None = None
) -> tuple[BNN, Composite]:
    """Return a model, and a guide moved away from its initial values."""
    model = small_model(entry, task, priors=priors)
    guide = model.guide(init_scale=0.2)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.method.before_training(model, guide)  # fitted priors follow the guide
    return model, guide


def small_problem(entry: Entry) -> tuple[BNN, Composite, Tensor, Tensor]:
    """Return model and guide, and data of the first task."""
    return *model_and_guide(entry), *small_data(entry.tasks[0])


def small_dataset(entry: Entry, rows: int = 60) -> Dataset:
    """Return the same problem as a data set with a test part."""
    x, y = small_data(entry.tasks[0], rows)
    x_test, y_test = small_data(entry.tasks[0], 30, seed=1)
    return from_arrays(
        x.numpy(), y.numpy(), X_test=x_test.numpy(), y_test=y_test.numpy(), task=entry.tasks[0]
    )


def tiny_fit(entry: Entry, dataset: Dataset, **options: object) -> Fit:
    """Fit a method in few steps, with few draws."""
    _, sizes = _likelihood_and_sizes(entry, entry.tasks[0])
    values = {"num_steps": 20, "num_samples": 8, "dtype": "float64"} | options
    config = make_config(method=entry.name, net=f"mlp:{'-'.join(map(str, sizes))}", **values)
    return run(prepare(config, dataset=dataset), progress_bar=False)
