"""The contract of a method, as checks that anybody can run: ``zoo check NAME``.

Every entry of the registry must pass every check, unless it lists one under ``expected_failures``
with a reason; then the check must really fail. The last two have an exact answer: a conjugate
regression, and the KL in the loss against an independent integral.
"""

import copy
import math
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyro
import pyro.poutine as poutine
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match
from torch import Tensor, nn
from torch.distributions import biject_to

from guides.base import Composite
from guides.mean_field import MeanField
from zoo import persist, workflow
from zoo.assemble import create
from zoo.bnn import BNN
from zoo.config import RunConfig, dump_config, make_config, read_config
from zoo.data import Dataset, from_arrays
from zoo.fitted import Fit
from zoo.infer.objective import Objective, site_divergences
from zoo.infer.predict import (
    draw_posterior,
    log_likelihood,
    network_outputs,
)
from zoo.infer.svi import SVI
from zoo.likelihoods import default_likelihood, parse_likelihood
from zoo.nets import mlp
from zoo.registry import Entry, Recipe, get

#: Priors that must be swappable into every method.
SWAPS = (
    "Normal(0, 1)",
    "Laplace(0, 1)",
    "StudentT(3)",
    "Normal(0, HalfCauchy(1))",
    "Normal(0, HalfNormal(1))",
    "Horseshoe(scale=0.1)",
    "NormalJeffreys()",
    "LogUniform()",
)

#: Rows of the small problems.
ROWS = 24

CHECKS: dict[str, Callable[[Entry], str | None]] = {}


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes
    ----------
    check
        Name of the check.
    ok
        Whether the outcome is the one that the entry promises.
    status
        ``ok``, ``failed``, ``expected failure`` or ``unexpected pass``.
    detail
        What was measured, or what went wrong.
    """

    check: str
    ok: bool
    status: str
    detail: str = ""


def check(function: Callable[[Entry], str | None]) -> Callable[[Entry], str | None]:
    """Add a check: it raises AssertionError, or returns what it measured."""
    CHECKS[function.__name__] = function
    return function


def run_checks(name: str) -> Iterator[CheckResult]:
    """Run every check on a method, one after the other."""
    entry = get(name)
    for check_name in CHECKS:
        yield run_check(entry, check_name)


def run_check(entry: Entry, check_name: str) -> CheckResult:
    """Run one check, with its own random numbers and no trace left behind."""
    reason = entry.expected_failures.get(check_name)
    with torch.random.fork_rng(), pyro.settings.context(module_local_params=True):
        torch.manual_seed(0)
        try:
            detail = CHECKS[check_name](entry) or ""
        except AssertionError as error:
            if reason is not None:
                return CheckResult(check_name, True, "expected failure", reason)
            return CheckResult(check_name, False, "failed", " ".join(str(error).split()))
    if reason is not None:
        return CheckResult(check_name, False, "unexpected pass", f"listed as failing: {reason}")
    return CheckResult(check_name, True, "ok", detail)


# ---------------------------------------------------------------------------- small problems


def _data(task: str, rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    f = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    if task == "classification":
        return x, (f > 0).long() + (f > 1.5).long()
    if task == "counts":
        return x, torch.poisson(f.clamp(max=2).exp(), generator=generator)
    return x, f + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


def _model(
    entry: Entry, task: str | None = None, *, priors: Mapping[str, str] | None = None
) -> BNN:
    task = task or entry.tasks[0]
    likelihood = parse_likelihood(default_likelihood(task))
    outputs = likelihood.num_outputs(3 if task == "classification" else None)
    net = mlp([3, 4, outputs]).double()
    return create(entry.name, net, likelihood=likelihood.double(), num_data=ROWS, priors=priors)


def _pair(
    entry: Entry, task: str | None = None, *, priors: Mapping[str, str] | None = None
) -> tuple[BNN, Composite]:
    """Return a model and a guide that is not at its symmetric start."""
    model = _model(entry, task, priors=priors)
    guide = model.guide(init_scale=0.2)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model, guide


def _dataset(entry: Entry, rows: int = 60) -> Dataset:
    x, y = _data(entry.tasks[0], rows)
    x_test, y_test = _data(entry.tasks[0], 30, seed=1)
    return from_arrays(
        x.numpy(), y.numpy(), X_test=x_test.numpy(), y_test=y_test.numpy(), task=entry.tasks[0]
    )


def _config(entry: Entry, **options: object) -> RunConfig:
    values: dict[str, object] = {"num_steps": 20, "num_samples": 8, "dtype": "float64"}
    return make_config(method=entry.name, net=_net_text(entry), **(values | options))


# ---------------------------------------------------------------------------- checks


@check
def builds_for_every_task(entry: Entry) -> str:
    """Every declared task has a finite loss with the default priors."""
    for task in entry.tasks:
        model, guide = _pair(entry, task)
        loss = Objective(model, guide)(*_data(task))
        assert torch.isfinite(loss), f"the loss for {task} is {float(loss.detach())}"
    return ", ".join(entry.tasks)


@check
def site_names(entry: Entry) -> str:
    """The observed site is y, the plate obs_id, and no site is a dotted prefix of another."""
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    with poutine.replay(trace=poutine.trace(guide).get_trace()):
        trace = poutine.trace(model).get_trace(x, y)
    names = [name for name, site in trace.nodes.items() if site["type"] == "sample"]
    observed = [n for n in names if trace.nodes[n]["is_observed"] and n not in model.slots]
    assert observed == ["y"], f"observed sites are {observed}, not ['y']"
    frames = [frame.name for frame in trace.nodes["y"]["cond_indep_stack"]]
    assert frames == ["obs_id"], f"the data plate is called {frames}, not obs_id"
    for name in names:
        clash = [other for other in names if other.startswith(name + ".")]
        assert not clash, f"site {name!r} is a dotted prefix of {clash[0]!r}"
    parameters = dict(model.net.named_parameters())
    unknown = [slot for slot in model.slots if slot not in parameters and slot != "noise"]
    assert not unknown, f"slots {unknown} are not parameters of the network"
    return f"{len(names)} sites"


@check
def guide_covers_model(entry: Entry) -> str:
    """Guide and model have the same latent sites, in the same order, for every swappable prior."""
    x, y = _data(entry.tasks[0])
    for prior in (None, *SWAPS):
        model, guide = _pair(entry, priors={"*weight": prior} if prior else {})
        guide_trace = poutine.trace(guide).get_trace(x, y)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(x, y)
        check_model_guide_match(model_trace, guide_trace)
        in_guide = [n for n, s in guide_trace.nodes.items() if s["type"] == "sample"]
        latent = [n for n, _ in prune_subsample_sites(model_trace).iter_stochastic_nodes()]
        assert in_guide == latent, f"with {prior}: model has {latent}, guide has {in_guide}"
        loss = Objective(model, guide)(x, y)
        assert torch.isfinite(loss), f"the loss with {prior} is {float(loss.detach())}"
    return f"{len(SWAPS)} priors swapped in"


@check
@torch.no_grad()
def log_likelihood_matches_trace(entry: Entry) -> None:
    """Vectorised log-likelihoods equal Pyro's own trace, draw by draw."""
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    draws = draw_posterior(model, guide, 3, seed=0)
    ours = log_likelihood(
        model, network_outputs(model, draws.slots, x), draws.slots.get("noise"), y
    )
    for index in range(3):
        values = {name: value[index] for name, value in draws.sites.items()}
        trace = poutine.trace(poutine.condition(model, data=values)).get_trace(x, y)
        trace.compute_log_prob()
        gap = float((trace.nodes["y"]["unscaled_log_prob"] - ours[index]).abs().max())
        assert gap < 1e-9, f"log-likelihoods differ by {gap}"


@check
def minibatch_is_unbiased(entry: Entry) -> None:
    """The loss averaged over all batches of a partition equals the full-data loss."""
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    objective = Objective(model, guide)

    def loss(rows: slice) -> Tensor:
        torch.manual_seed(3)  # the same posterior draw for every batch
        value: Tensor = objective(x[rows], y[rows])
        return value.detach()

    full = loss(slice(None))
    batches = torch.stack([loss(slice(start, start + 6)) for start in range(0, ROWS, 6)]).mean()
    gap = float((full - batches).abs() / full.abs())
    assert gap < 1e-9, f"mean over batches {float(batches)}, full data {float(full)}"


@check
def gradients_reach_every_parameter(entry: Entry) -> str:
    """No parameter of the guide is dead."""
    model, guide = _pair(entry)
    Objective(model, guide)(*_data(entry.tasks[0])).backward()
    dead = [n for n, p in guide.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead, f"no gradient reaches {dead}"
    return f"{sum(p.numel() for p in guide.parameters())} parameters"


@check
def seed_reproduces(entry: Entry) -> None:
    """The same seed gives the same bits, another seed does not."""
    dataset = _dataset(entry)

    def state(seed: int) -> Tensor:
        guide = _tiny_fit(entry, dataset, seed=seed).assembly.guide
        return torch.cat([p.detach().flatten() for p in guide.parameters()])

    first = state(1)
    assert torch.equal(first, state(1)), "two runs with the same seed differ"
    assert not torch.equal(first, state(2)), "runs with different seeds are the same"


@check
def follows_dtype_and_device(entry: Entry) -> str:
    """Loss, gradients and draws have the precision and the device of the model."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for dtype in (torch.float32, torch.float64):
            model, guide = _pair(entry)
            model, guide = model.to(device, dtype), guide.to(device, dtype)
            x, y = (v.to(device) for v in _data(entry.tasks[0]))
            y = y.to(dtype) if y.is_floating_point() else y
            loss = Objective(model, guide)(x.to(dtype), y)
            loss.backward()
            draws = draw_posterior(model, guide, 2, seed=0)
            tensors = [loss, *(p.grad for p in guide.parameters()), *draws.slots.values()]
            for tensor in tensors:
                assert tensor is not None
                assert tensor.dtype == dtype, f"{tensor.dtype} appears in a {dtype} model"
                assert tensor.device.type == device, f"{tensor.device} appears on {device}"
    return ", ".join(devices)


@check
def tree_schema(entry: Entry) -> None:
    """The tree has ArviZ's groups, and log-likelihoods of shape (chain, draw, obs_id)."""
    dataset = _dataset(entry)
    tree = _tiny_fit(entry, dataset).tree(dataset)
    wanted = {
        "posterior",
        "sample_stats",
        "log_likelihood",
        "posterior_predictive",
        "observed_data",
    }
    missing = wanted - set(tree.children)
    assert not missing, f"the tree lacks {sorted(missing)}"
    dims = dict(tree["log_likelihood"]["y"].sizes)
    expected = {"chain": 1, "draw": 8, "obs_id": len(dataset.y_train)}
    assert dims == expected, f"log_likelihood has {dims} instead of {expected}"


@check
def prior_swap(entry: Entry) -> None:
    """Another prior changes the log prior and leaves the likelihood of the same weights alone."""
    x, y = _data(entry.tasks[0])
    densities = []
    for scale in (1, 2):
        torch.manual_seed(0)
        model = _model(entry, priors={"*": f"Normal(0, {scale})"})
        values = {n: torch.full_like(s.value, 0.3) for n, s in model.slots.items()}
        trace = poutine.trace(poutine.condition(model, data=values)).get_trace(x, y)
        trace.compute_log_prob()
        prior = sum(float(trace.nodes[name]["log_prob_sum"].detach()) for name in model.slots)
        densities.append((prior, float(trace.nodes["y"]["log_prob_sum"].detach())))
    (prior_1, likelihood_1), (prior_2, likelihood_2) = densities
    assert prior_1 != prior_2, "the log prior did not change"
    assert likelihood_1 == likelihood_2, "the log likelihood changed"


@check
def save_load(entry: Entry) -> None:
    """A stored fit, loaded into a new object, gives identical draws."""
    dataset = _dataset(entry)
    fitted = _tiny_fit(entry, dataset)
    with tempfile.TemporaryDirectory() as folder:
        persist.save(fitted, Path(folder) / "run")
        loaded = persist.load(Path(folder) / "run")
        for name, value in fitted.draws.slots.items():
            assert torch.equal(value, loaded.draws.slots[name]), f"draws of {name} differ"


@check
def config_round_trip(entry: Entry) -> None:
    """The resolved configuration comes back from YAML unchanged."""
    config = _tiny_fit(entry, _dataset(entry)).config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump_config(config), encoding="utf-8")
        assert make_config(**read_config(path)) == config, "config.yaml does not give the config"


@check
def pickles_to_worker(entry: Entry) -> None:
    """Model and guide can be sent to another process."""
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    copies = pickle.loads(pickle.dumps((model, guide)))
    losses = []
    for pair in ((model, guide), copies):
        torch.manual_seed(0)
        losses.append(float(Objective(*pair)(x, y).detach()))
    assert losses[0] == losses[1], f"the loss changed from {losses[0]} to {losses[1]}"


@check
def predict_shapes(entry: Entry) -> None:
    """Predictions have one number per row, and uncertainties are not negative."""
    dataset = _dataset(entry)
    prediction = _tiny_fit(entry, dataset).predict(dataset.X_test)
    rows = len(dataset.X_test)
    assert prediction.mean.shape == (rows,), f"mean has shape {prediction.mean.shape}"
    assert prediction.samples.shape == (8, rows), f"samples: {prediction.samples.shape}"
    for name in ("aleatoric", "epistemic"):
        part = getattr(prediction, name)
        assert part.shape == (rows,), f"{name} uncertainty has shape {part.shape}"
        assert (part >= 0).all(), f"{name} uncertainty is negative"


@check
def beats_the_prior(entry: Entry) -> str:
    """After a short fit, held-out rows are more probable than before it."""
    dataset = _dataset(entry, rows=120)
    densities = []
    for num_steps in (1, 400):
        fitted = _tiny_fit(entry, dataset, num_steps=num_steps, num_samples=50, lr=0.02)
        observed = dataset.schema.decode_target(dataset.y_test)
        densities.append(-fitted.score(dataset.X_test, observed)["nll"])
    before, after = densities
    assert after > before, f"log density per row is {after:.3f} after and {before:.3f} before"
    return f"log density per row {before:.2f} -> {after:.2f}"


@check
def documentation(entry: Entry) -> None:
    """The method's file explains itself: a sentence, formulas, when to use it, a reference."""
    text = entry.documentation
    assert entry.summary.endswith("."), "the first sentence must end with a full stop"
    assert ".. math::" in text, "there is no formula"
    assert "Use it" in text, "it does not say when to use it"
    assert "Reference" in text, "there is no reference"
    assert entry.reference, "the entry has no reference"


@check
def agrees_with_stock_elbo(entry: Entry) -> str:
    """Loss and gradients of both estimators have the expectation of Pyro's TraceMeanField_ELBO."""
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    stock = TraceMeanField_ELBO()
    parameters = list(guide.parameters())

    def draws(loss: Callable[[], Tensor], seed: int, count: int = 200) -> Tensor:
        torch.manual_seed(seed)
        rows = []
        for _ in range(count):
            value = loss()
            gradients = torch.autograd.grad(value, parameters)
            rows.append(torch.cat([value.detach()[None], *(g.flatten() for g in gradients)]))
        return torch.stack(rows)

    theirs = draws(lambda: stock.differentiable_loss(model, guide, x, y), 1)
    scores = {}
    for local in (False, True):
        objective = Objective(model, guide, local=local)
        ours = draws(lambda objective=objective: objective(x, y), 2)  # type: ignore[misc]
        error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt()
        gap = (ours.mean(0) - theirs.mean(0)).abs()
        smallest = 1e-9 * theirs.abs().mean(0).max()
        scores["local" if local else "weights"] = float((gap / error.clamp(min=smallest)).max())
    worst = max(scores.values())
    assert worst < 5, f"loss or gradients differ from stock Pyro by {worst:.1f} standard errors"
    return ", ".join(f"{name}: largest z-score {score:.1f}" for name, score in scores.items())


@check
def recovers_linear_regression(entry: Entry) -> str:
    """On a conjugate regression, means and standard deviations are those of the exact optimum.

    With prior N(0, 1) and known noise the posterior precision is A = I + X'X / s^2; the best
    factorised posterior has the exact means and the variances 1 / A_ii.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 8, generator=generator, dtype=torch.float64)
    truth = torch.linspace(-2, 2, 8, dtype=torch.float64)
    y = x @ truth + 0.5 * torch.randn(100, generator=generator, dtype=torch.float64)
    likelihood = parse_likelihood("gaussian(noise=0.5)").double()
    model = create(
        entry.name, _Linear(8), likelihood=likelihood, num_data=100, priors={"*": "Normal(0, 1)"}
    )
    guide = model.guide(init_scale=0.05)
    # A standard deviation to 3% takes thousands of draws, which is why they are vectorised.
    recipe = Recipe(num_steps=1000, batch_size=100, lr=0.02, schedule="cosine", kl_warmup=0.0)
    svi = SVI(
        model,
        guide,
        x,
        y,
        recipe=recipe,
        seed=0,
        num_particles=128,
        vectorize_particles=True,
    )
    svi.run(progress_bar=False)
    part = guide["weight"]
    assert isinstance(part, MeanField)
    loc, scale = part["weight"].loc.detach(), part["weight"].log_scale.detach().exp()
    precision = torch.eye(8, dtype=torch.float64) + x.T @ x / 0.25
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    mean_gap = float(((loc - mean) / mean).abs().max())
    scale_gap = float((scale * precision.diagonal().sqrt() - 1).abs().max())
    detail = f"means within {mean_gap:.2%}, standard deviations within {scale_gap:.2%}"
    assert mean_gap < 0.01, detail
    if entry.exactness == "mean_field":
        assert scale_gap < 0.03, detail
    return detail


class _Linear(nn.Module):
    """A linear model that also accepts a batch of weights, so that many draws are one call."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(-1, keepdim=True)


@check
@torch.no_grad()
def kl_is_exact(entry: Entry) -> str:
    """The KL in the loss is the KL, with weight one: no factor, no missing layer.

    What the loss has beyond the negative log-likelihood of the same draw is compared with
    one-dimensional integrals of log q - log p, computed without any closed form.
    """
    model, guide = _pair(entry)
    x, y = _data(entry.tasks[0])
    torch.manual_seed(5)
    loss = float(Objective(model, guide)(x, y))
    torch.manual_seed(5)
    guide_trace = poutine.trace(guide).get_trace()
    trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(x, y)
    trace.compute_log_prob()
    in_loss = loss + float(trace.nodes["y"]["log_prob_sum"])
    exact = 0.0
    for slot in model.slots:
        part = guide[slot]
        assert isinstance(part, MeanField), f"no independent integral for {type(part).__name__}"
        for site in part.names:
            exact += _integrated_divergence(part, site, trace.nodes[site]["fn"])
    ratio = in_loss / exact
    analytic = all(a for _, a in site_divergences(model.sample_slots, guide).values())
    assert analytic == entry.analytic_kl, f"analytic_kl should be {analytic}"
    if entry.analytic_kl:
        assert abs(ratio - 1) < 5e-4, f"KL in the loss / exact KL = {ratio:.4f}"
    return f"KL in the loss / exact KL = {ratio:.3f}"


@torch.no_grad()
def _integrated_divergence(part: MeanField, site: str, prior: object, nodes: int = 120) -> float:
    """Integrate log q - log p over q, element by element, by Gauss-Hermite quadrature."""
    posterior = part[site]
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    shape = (-1,) + (1,) * posterior.loc.dim()
    e = torch.as_tensor(points, dtype=torch.float64).reshape(shape)
    w = torch.as_tensor(weights / math.sqrt(2 * math.pi), dtype=torch.float64).reshape(shape)
    scale = posterior.log_scale.exp()
    u = posterior.loc + scale * e
    transform = biject_to(posterior.support)
    while isinstance(prior, torch.distributions.Independent):
        prior = prior.base_dist
    base = copy.copy(transform)
    while hasattr(base, "base_transform"):
        base = base.base_transform
    log_q = -0.5 * e**2 - 0.5 * math.log(2 * math.pi) - scale.log()
    value = base(u)
    log_p = prior.log_prob(value) + base.log_abs_det_jacobian(u, value)  # type: ignore[attr-defined]
    return float((w * (log_q - log_p)).sum())


def _net_text(entry: Entry) -> str:
    likelihood = parse_likelihood(default_likelihood(entry.tasks[0]))
    outputs = likelihood.num_outputs(3 if entry.tasks[0] == "classification" else None)
    return f"mlp:3-4-{outputs}"


def _tiny_fit(entry: Entry, dataset: Dataset, **options: object) -> Fit:
    config = _config(entry, **options)
    return workflow.run(workflow.prepare(config, dataset=dataset), progress_bar=False)
