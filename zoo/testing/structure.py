"""Checks of model and guide: sites, densities, gradients."""

import pickle

import pyro.poutine as poutine
import torch
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_model_guide_match
from torch import Tensor

from zoo.infer.predict.draws import draw_posterior, log_likelihood
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.svi.objective import Objective
from zoo.registry import Entry
from zoo.testing.problems import ROWS, model_and_guide, small_data, small_model, small_problem

#: Priors that must be swappable into every method.
SWAPS = (
    "Normal(0, 1)",
    "Laplace(0, 1)",
    "StudentT(3)",
    "Normal(0, HalfCauchy(1))",
    "Normal(0, HalfNormal(1))",
    "GroupHorseshoe(scale=0.1)",
    "GroupNormalJeffreys()",
    "SparseVD()",
    "EmpiricalBayes()",
    "Graves()",
)


def builds_for_every_task(entry: Entry) -> str:
    """Every declared task has a finite loss with the default priors."""
    for task in entry.tasks:
        model, guide = model_and_guide(entry, task)
        loss = Objective(model, guide)(*small_data(task))
        assert torch.isfinite(loss), f"the loss for {task} is {float(loss.detach())}"
    return ", ".join(entry.tasks)


def site_names(entry: Entry) -> str:
    """The observed site is y, the plate obs_id, and no site is a dotted prefix of another."""
    model, guide, x, y = small_problem(entry)
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
    tensors = dict(model.net.named_parameters()) | dict(model.net.named_buffers())
    unknown = [slot for slot in model.slots if slot not in tensors and slot != "noise"]
    assert not unknown, f"slots {unknown} are not tensors of the network"
    return f"{len(names)} sites"


def guide_covers_model(entry: Entry) -> str:
    """Guide and model have the same latent sites, in the same order, for every swappable prior."""
    x, y = small_data(entry.tasks[0])
    for prior in (None, *SWAPS):
        model, guide = model_and_guide(entry, priors={"*weight": prior} if prior else {})
        guide_trace = poutine.trace(guide).get_trace(x, y)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(x, y)
        check_model_guide_match(model_trace, guide_trace)
        in_guide = [n for n, s in guide_trace.nodes.items() if s["type"] == "sample"]
        latent = [n for n, _ in prune_subsample_sites(model_trace).iter_stochastic_nodes()]
        assert in_guide == latent, f"with {prior}: model has {latent}, guide has {in_guide}"
        loss = Objective(model, guide)(x, y)
        assert torch.isfinite(loss), f"the loss with {prior} is {float(loss.detach())}"
    return f"{len(SWAPS)} priors swapped in"


@torch.no_grad()
def log_likelihood_matches_trace(entry: Entry) -> None:
    """Vectorised log-likelihoods equal Pyro's own trace, draw by draw."""
    model, guide, x, y = small_problem(entry)
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


def minibatch_is_unbiased(entry: Entry) -> None:
    """The loss averaged over all batches of a partition equals the full-data loss."""
    model, guide, x, y = small_problem(entry)
    objective = Objective(model, guide)

    def loss(rows: slice) -> Tensor:
        torch.manual_seed(3)  # the same posterior draw for every batch
        value: Tensor = objective(x[rows], y[rows])
        return value.detach()

    full = loss(slice(None))
    batches = torch.stack([loss(slice(start, start + 6)) for start in range(0, ROWS, 6)]).mean()
    gap = float((full - batches).abs() / full.abs())
    assert gap < 1e-9, f"mean over batches {float(batches)}, full data {float(full)}"


def gradients_reach_every_parameter(entry: Entry) -> str:
    """Every parameter of the guide has a gradient."""
    model, guide, x, y = small_problem(entry)
    Objective(model, guide)(x, y).backward()
    dead = [n for n, p in guide.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead, f"no gradient reaches {dead}"
    return f"{sum(p.numel() for p in guide.parameters())} parameters"


def follows_dtype_and_device(entry: Entry) -> str:
    """Loss, gradients and draws have the precision and the device of the model."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        for dtype in (torch.float32, torch.float64):
            model, guide, x, y = small_problem(entry)
            model, guide = model.to(device, dtype), guide.to(device, dtype)
            x = x.to(device, dtype)
            y = y.to(device, dtype if y.is_floating_point() else y.dtype)
            objective = Objective(model, guide)
            loss = objective(x, y)
            loss.backward()
            draws = draw_posterior(model, guide, 2, seed=0)
            trained = [p for p in objective.parameters() if p.requires_grad]
            tensors = [loss, *(p.grad for p in trained), *draws.slots.values()]
            for tensor in tensors:
                assert tensor is not None
                assert tensor.dtype == dtype, f"{tensor.dtype} appears in a {dtype} model"
                assert tensor.device.type == device, f"{tensor.device} appears on {device}"
    return ", ".join(devices)


def prior_swap(entry: Entry) -> None:
    """Another prior changes the log prior and leaves the likelihood of the same weights alone."""
    x, y = small_data(entry.tasks[0])
    densities = []
    for scale in (1, 2):
        torch.manual_seed(0)
        model = small_model(entry, priors={"*": f"Normal(0, {scale})"})
        values = {n: torch.full_like(s.value, 0.3) for n, s in model.slots.items()}
        trace = poutine.trace(poutine.condition(model, data=values)).get_trace(x, y)
        trace.compute_log_prob()
        prior = sum(float(trace.nodes[name]["log_prob_sum"].detach()) for name in model.slots)
        densities.append((prior, float(trace.nodes["y"]["log_prob_sum"].detach())))
    (prior_1, likelihood_1), (prior_2, likelihood_2) = densities
    assert prior_1 != prior_2, "the log prior did not change"
    assert likelihood_1 == likelihood_2, "the log likelihood changed"


def pickles_to_worker(entry: Entry) -> None:
    """Model and guide can be sent to another process."""
    model, guide, x, y = small_problem(entry)
    copies = pickle.loads(pickle.dumps((model, guide)))
    losses = []
    for pair in ((model, guide), copies):
        torch.manual_seed(0)
        losses.append(float(Objective(*pair)(x, y).detach()))
    assert losses[0] == losses[1], f"the loss changed from {losses[0]} to {losses[1]}"


def documentation(entry: Entry) -> None:
    """The method's file explains itself: a sentence, formulas, when to use it, a reference."""
    text = entry.documentation
    assert entry.summary.endswith("."), "the first sentence must end with a full stop"
    assert ".. math::" in text, "there is no formula"
    assert "Use it" in text, "it does not say when to use it"
    assert "Reference" in text, "there is no reference"
    assert entry.reference, "the entry has no reference"
