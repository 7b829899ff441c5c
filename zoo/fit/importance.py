"""Importance sampling of small models: k-hat of the guide, and reference moments of parameters.

All of it is for models with few unknowns, some of them identified. Nothing is left out for large
data: densities of all rows are computed in chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray
from numpy.typing import NDArray
from torch import Tensor

from zoo.data import Dataset
from zoo.errors import ZooError
from zoo.fit.any_model import FittedModel, full_size
from zoo.fit.model_draws import densities_of
from zoo.fit.result import Fitted, training_tensors
from zoo.infer.importance import (
    MIN_EFFECTIVE,
    Mode,
    NoReferenceError,
    Reference,
    SeveralModesError,
    importance_reference,
    moments,
    number_of_draws,
)
from zoo.infer.nuts.density import LogDensity
from zoo.infer.predict.draws import (
    Draws,
    draw_posterior,
    log_likelihood,
    log_posterior,
    site_log_priors,
    slots_of,
)
from zoo.infer.predict.outputs import network_outputs
from zoo.infer.psis import KHAT_USABLE, effective_draws, khat_error, smoothed_log_weights
from zoo.infer.recording import CANNOT
from zoo.infer.rng import seeded
from zoo.infer.svi.schedule import child_seed
from zoo.network.bnn import BNN

Array = NDArray[Any]

#: Streams of random numbers for draws of the guide and of the reference.
GUIDE_STREAM, REFERENCE_STREAM = 5_000_000_029, 5_000_000_039
#: Draws of the guide at a time, largest number of them, and largest number of rows times draws.
CHUNK, MAX_GUIDE_DRAWS, CHUNK_ENTRIES = 500, 16_000, 2**22
#: A mode is covered by this fraction of the draws that its mass would have.
COVERED = 0.1
#: k-hat is decided if the threshold is this many standard errors away.
DECIDED = 2.0

STATISTICS = ("mean", "sd", "mean_error", "sd_error")

#: Draws of a guide by number and seed: log weights, and identified parameters.
Sampled = Callable[[int, int], tuple[Array, dict[str, Array]]]


def log_joint(model: BNN, draws: Draws, x: Tensor, y: Tensor) -> Tensor:
    """Return the log joint of draws with all rows, in chunks of rows."""
    total = torch.stack(list(site_log_priors(model, draws).values())).double().sum(0)
    rows = max(1, CHUNK_ENTRIES // len(draws))
    for part_x, part_y in zip(x.split(rows), y.split(rows), strict=True):
        f = network_outputs(model, draws.values, part_x.to(total.device))
        likelihood = log_likelihood(model, f, draws.slots.get("noise"), part_y.to(total.device))
        total = total + likelihood.double().sum(1)
    return total


def network_importance(fitted: Fitted, dataset: Dataset, names: list[str]) -> xarray.Dataset:
    """Return k-hat and reference moments of the named slots of a network."""
    model, guide = fitted.assembly.model, fitted.assembly.guide
    x, y = training_tensors(fitted.assembly, dataset)

    def sampled(number: int, seed: int) -> tuple[Array, dict[str, Array]]:
        draws = draw_posterior(model, guide, number, seed=seed)
        weights = log_joint(model, draws, x, y) - log_posterior(guide, draws).double()
        return _numpy(weights), {name: _numpy(draws.slots[name]) for name in names}

    def reference(start: Mapping[str, Any], seed: int) -> tuple[Reference, dict[str, Array]]:
        exact = model.proper().cpu().double().eval()
        if any(prior != model.priors[name] for name, prior in exact.priors.items()):
            raise NoReferenceError("a prior is improper.")
        exact.autocast = False
        density = LogDensity(exact, (x.cpu(), y.cpu()))

        def of_slots(sites: Mapping[str, Array]) -> dict[str, Array]:
            slots = slots_of(exact, {k: torch.as_tensor(v) for k, v in sites.items()})
            return {name: _numpy(slots[name]) for name in names}

        try:
            found = importance_reference(density, start, num_rows=len(x), seed=seed)
        except SeveralModesError as error:
            one = [of_slots({k: v[None] for k, v in mode.values.items()}) for mode in error.modes]
            raise SeveralModesError(
                [
                    Mode({k: v[0] for k, v in slots.items()}, mode.share)
                    for slots, mode in zip(one, error.modes, strict=True)
                ]
            ) from None
        return found, of_slots(found.values)

    start = {name: value.double().mean(0) for name, value in fitted.draws.sites.items()}
    return _importance(sampled, reference, start, len(x), fitted.config.seed)


def model_importance(fitted: FittedModel) -> xarray.Dataset:
    """Return k-hat and reference moments of all sites of a Pyro model."""
    guide = full_size(fitted.guide)

    def sampled(number: int, seed: int) -> tuple[Array, dict[str, Array]]:
        with torch.no_grad(), seeded(seed, guide.some_tensor.device):
            drawn = {name: value.detach() for name, value in guide.draw(number).items()}
        weights = densities_of(fitted.full, drawn).log_joint - log_posterior(
            guide, Draws(drawn, {})
        ).double().to(fitted.guide.some_tensor.device)
        return _numpy(weights), {name: _numpy(value) for name, value in drawn.items()}

    def reference(start: Mapping[str, Any], seed: int) -> tuple[Reference, dict[str, Array]]:
        args, kwargs = fitted.full.arguments
        density = LogDensity(fitted.full.model, args, kwargs)
        found = importance_reference(density, start, num_rows=0, seed=seed)
        return found, dict(found.values)

    start = {name: value.double().mean(0) for name, value in fitted.draws.items()}
    return _importance(sampled, reference, start, 0, fitted.config.seed)


def _importance(
    sampled: Sampled,
    reference: Callable[..., tuple[Reference, dict[str, Array]]],
    start: Mapping[str, Any],
    num_rows: int,
    seed: int,
) -> xarray.Dataset:
    """Return the group ``importance`` of a tree.

    It has the log weights of the guide (``log_weight``) and, for every parameter, mean and sd with
    their errors, of the guide and of the reference. Without a reference, the attribute
    ``no_reference`` has the reason. If that is several modes, ``modes`` is their number, and
    ``missed`` the share of the mass at modes of which the guide has no draws.
    """
    attributes: dict[str, Any] = {}
    modes: tuple[Mode, ...] = ()
    sources: dict[str, dict[str, Array]] = {}
    try:
        found, values = reference(start, child_seed(seed, REFERENCE_STREAM))
        sources["posterior"] = {k: moments(v, found.log_weights) for k, v in values.items()}
        attributes |= {
            "khat": found.khat,
            "draws": len(found.log_weights),
            "effective": found.effective,
            "log_evidence": found.log_evidence,
            "log_evidence_error": found.log_evidence_error,
        }
    except (NoReferenceError, ZooError, *CANNOT) as error:
        attributes["no_reference"] = " ".join(str(error).split())[:300]
        modes = error.modes if isinstance(error, SeveralModesError) else ()
    weights, drawn = _guide_draws(sampled, num_rows, seed, decides="posterior" not in sources)
    uniform = np.full(len(weights), -np.log(len(weights)))
    sources["guide"] = {name: moments(value, uniform) for name, value in drawn.items()}
    if modes:
        attributes |= {"modes": len(modes), "missed": missed_mass(modes, drawn)}
    if "posterior" not in sources and not attributes.get("missed", 0.0):
        corrected = corrected_draws(weights)
        if corrected is not None:  # the draws of the guide serve as well
            sources["posterior"] = {k: moments(v, corrected) for k, v in drawn.items()}
            attributes["draws"] = len(weights)
    variables: dict[str, Any] = {"log_weight": ("importance_draw", weights)}
    for name in drawn:
        rows = np.stack([by_name[name] for by_name in sources.values()])
        dims = tuple(f"{name}_dim_{i}" for i in range(rows.ndim - 2))
        variables[name] = (("source", "statistic", *dims), rows)
    coordinates = {"source": list(sources), "statistic": list(STATISTICS)}
    return xarray.Dataset(variables, coordinates, attributes)


def corrected_draws(weights: Array) -> Array | None:
    """Return smoothed log weights of draws of the guide if they represent the posterior."""
    if not np.isfinite(weights).all():
        return None
    smoothed, khat = smoothed_log_weights(weights)
    is_usable = khat <= KHAT_USABLE and effective_draws(smoothed) >= MIN_EFFECTIVE
    return smoothed if is_usable else None


def missed_mass(modes: Sequence[Mode], drawn: Mapping[str, Array]) -> float:
    """Return the share of the mass at modes that hardly any draw of the guide is closest to.

    Distances are in standard deviations of the guide.
    """
    scales = {name: value.std(0) + 1e-300 for name, value in drawn.items()}
    distances = [
        sum(
            (((value - mode.values[name]) / scales[name]) ** 2).reshape(len(value), -1).sum(1)
            for name, value in drawn.items()
        )
        for mode in modes
    ]
    nearest = np.argmin(distances, axis=0)
    shares = [float((nearest == k).mean()) for k in range(len(modes))]
    return sum(
        mode.share
        for mode, share in zip(modes, shares, strict=True)
        if share < COVERED * mode.share
    )


def _guide_draws(
    sampled: Sampled, num_rows: int, seed: int, *, decides: bool
) -> tuple[Array, dict[str, Array]]:
    """Draw from the guide until k-hat is on one side of its threshold, if it decides."""
    first = number_of_draws(num_rows)
    parts: list[tuple[Array, dict[str, Array]]] = []
    while True:
        total = sum(len(weights) for weights, _ in parts)
        for _ in range(max(1, max(first, total) // CHUNK)):
            parts.append(sampled(CHUNK, child_seed(seed, GUIDE_STREAM + len(parts))))
        weights = np.concatenate([part for part, _ in parts])
        finite = np.isfinite(weights).all()
        khat = smoothed_log_weights(weights)[1] if finite else np.inf
        margin = DECIDED * khat_error(khat, len(weights))
        enough = not decides or not finite or abs(khat - KHAT_USABLE) > margin
        if enough or 2 * len(weights) > MAX_GUIDE_DRAWS * max(1, first) / 4000:
            names = parts[0][1]
            return weights, {n: np.concatenate([drawn[n] for _, drawn in parts]) for n in names}


def _numpy(value: Tensor) -> Array:
    array: Array = value.detach().double().cpu().numpy()
    return array
