"""`Compression`: from a fit to a smaller network, measured."""

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from zoo.compress import costs
from zoo.compress.bits import RULES, RoundedNetwork, Rule, round_weights
from zoo.compress.choice import PruningChoice, choose_by_threshold, choose_by_tolerance
from zoo.compress.folding import fold_affines
from zoo.compress.graph import LayerGraph
from zoo.compress.loader import Network, load
from zoo.compress.onnx_export import ONNX_FILE, write_onnx
from zoo.compress.shrink import shrink
from zoo.compress.tracing import trace
from zoo.compress.writing import write_network
from zoo.data import Dataset
from zoo.errors import CompressionError
from zoo.fit.result import Fitted
from zoo.infer.normalisation import statistics_of_draws
from zoo.infer.pruning.groups import TOLERATED_LOSS, SlotGroups, masked
from zoo.infer.pruning.moments import slot_moments
from zoo.infer.svi.schedule import child_seed
from zoo.report.compression import compression_text

#: Rows on which the cost of pruning and rounding is measured, and rows per call.
VALIDATION_ROWS = 2000
CHUNK_ROWS = 512
#: Rows on which the smaller network is compared with the masked one.
COMPARED_ROWS = 256
#: Draws of an observation from which scores of numbers and counts are computed.
OBSERVATION_DRAWS = 100
#: Share of a tolerance that pruning may use; the rest is left for rounding.
PRUNING_SHARE = 0.9
#: Streams of random numbers.
MOMENT_STREAM = 2_000_000_137
ROW_STREAM = 2_000_000_141

Array = NDArray[Any]


@dataclass(frozen=True)
class Compression:
    """A compressed fit.

    Attributes
    ----------
    network
        The smaller network of posterior means, rounded: a torch module.
    choice
        Which groups were pruned, and by which rule.
    rounded
        The network as a graph, with the bits of every layer.
    summary
        Everything that was measured, as plain types: the content of ``compression.json``.
    metadata
        Plain values that are stored with the network.
    """

    network: Network
    choice: PruningChoice
    rounded: RoundedNetwork
    summary: dict[str, Any]
    metadata: dict[str, Any]

    def save(self, directory: str | Path, *, onnx: bool = False) -> Path:
        """Write the files that `zoo.compress.load` reads and, if `onnx`, ``network.onnx``."""
        path = Path(directory)
        (path / ONNX_FILE).unlink(missing_ok=True)  # an old file would hold another network
        write_network(self.rounded.graph, self.rounded.bits, path, **self.metadata)
        if onnx:
            write_onnx(self.rounded.graph, path)
        return path

    def table(self) -> str:
        """Return the measurements as text."""
        return compression_text(self.summary)


def compress_fit(
    fitted: Fitted,
    dataset: Dataset | None = None,
    *,
    threshold: float | Mapping[str, float] | None = None,
    tolerance: float | None = None,
    bits: Rule = "variance",
    validation: Dataset | None = None,
    posterior_scores: Mapping[str, float] | None = None,
) -> Compression:
    """Make the network of a fit smaller, and measure it.

    Parameters
    ----------
    fitted, dataset
        The fit, and its data if it was loaded without them.
    threshold
        Prune groups with a score above this: one number, or numbers by slot pattern.
    tolerance
        Prune as much as possible at a cost of at most so many nats per row, on rows that are not
        test rows. By default the method's own rule decides.
    bits
        The rule for the bits of a layer: ``variance`` (the published rule), ``sd`` or ``off``.
    validation
        Data whose training part was not used for training. Without it the cost of pruning is
        measured on training rows.
    posterior_scores
        Scores of the posterior predictive on the test rows, if known.
    """
    dataset = dataset or fitted.dataset
    if dataset is None:
        raise CompressionError("this fit was loaded without its data: pass dataset=.")
    if threshold is not None and tolerance is not None:
        raise CompressionError("give a threshold or a tolerance, not both.")
    if bits not in RULES:
        raise CompressionError(f"unknown rule for bits {bits!r}. Known: {', '.join(RULES)}.")
    work = _Work(fitted, dataset, validation)
    choice = work.choose(threshold, tolerance)
    full, smaller = work.graph({}), shrink(work.graph(choice.view.groups))
    if tolerance is None:
        limit = work.graph_nll(smaller) + TOLERATED_LOSS
    else:
        limit = work.masked_nll({}) + tolerance
    rounded = round_weights(smaller, bits, is_good=lambda graph: work.graph_nll(graph) <= limit)
    return work.measured(choice, full, smaller, rounded, posterior_scores)


class _Work:
    """The fit in double precision on the CPU, and the rows on which costs are measured."""

    def __init__(self, fitted: Fitted, dataset: Dataset, validation: Dataset | None) -> None:
        self.fitted, self.dataset = fitted, dataset
        assembly = fitted.assembly
        seed = child_seed(fitted.config.seed, MOMENT_STREAM)
        moments = slot_moments(assembly.model, assembly.guide, seed=seed)
        self.means = {name: value.cpu() for name, value in moments.means.items()}
        self.variances = {name: value.cpu() for name, value in moments.variances.items()}
        self.model = copy.deepcopy(assembly.model).cpu().double().eval()
        self.model.autocast = False
        self.is_held_out = validation is not None
        source = dataset if validation is None else validation
        rng = np.random.default_rng(child_seed(fitted.config.seed, ROW_STREAM))
        rows = rng.permutation(len(source.X_train))[:VALIDATION_ROWS]
        self.x, self.y = source.X_train[rows], source.y_train[rows]

    def values(self, groups: Mapping[str, SlotGroups]) -> dict[str, Tensor]:
        """Return the slots with some groups pruned, and statistics computed with these values."""
        means = masked(self.means, groups)
        rows = _rows(self.dataset.X_train)
        buffers = statistics_of_draws(self.model, {n: v[None] for n, v in means.items()}, rows)
        return means | {name: value[0] for name, value in buffers.items()}

    def graph(self, groups: Mapping[str, SlotGroups]) -> LayerGraph:
        """Return the network of means as a graph, with variances where they are known."""
        graph = trace(self.model.evaluate, self.values(groups), self.fitted.schema.input_shape)
        for node in graph.weighted():
            variance = self.variances.get(node.slot or "")
            if variance is not None and variance.shape == node.weight.shape:
                node.variance = variance
        return graph

    @torch.no_grad()
    def scores(
        self, forward: Callable[[Tensor], Tensor], x: Array, y: Array, dtype: torch.dtype
    ) -> dict[str, float]:
        """Return the scores of a function of rows; none if there are no rows."""
        if not len(x):
            return {}
        f = torch.cat([forward(rows) for rows in _rows(x).to(dtype).split(CHUNK_ROWS)]).double()
        is_class = self.fitted.schema.task == "classification"
        draws, device = 1 if is_class else OBSERVATION_DRAWS, self.fitted.config.device
        noise = self.means.get("noise")
        values = {} if noise is None else {"noise": noise.expand(draws).to(device)}
        return self.fitted.output_scores(f.expand(draws, *f.shape).to(device), y, values)

    def masked_nll(self, groups: Mapping[str, SlotGroups]) -> float:
        """Return the negative log-likelihood per row with some groups pruned."""
        forward = partial(self.model.evaluate, self.values(groups))
        return self.scores(forward, self.x, self.y, torch.float64)["nll"]

    def graph_nll(self, graph: LayerGraph) -> float:
        """Return the negative log-likelihood per row of a network."""
        return self.scores(graph.network(), self.x, self.y, torch.float64)["nll"]

    def choose(
        self, threshold: float | Mapping[str, float] | None, tolerance: float | None
    ) -> PruningChoice:
        """Choose the groups to prune."""
        model, guide = self.fitted.assembly.model, self.fitted.assembly.guide
        few = torch.as_tensor(
            self.x[:2], dtype=next(model.parameters()).dtype, device=self.fitted.config.device
        )
        if threshold is not None:
            return choose_by_threshold(model, guide, few, threshold)
        if tolerance is not None:
            share = PRUNING_SHARE * tolerance
            return choose_by_tolerance(model, guide, few, share, self.masked_nll)
        return PruningChoice("default", self.fitted.groups(self.dataset))

    def measured(
        self,
        choice: PruningChoice,
        full: LayerGraph,
        smaller: LayerGraph,
        rounded: RoundedNetwork,
        posterior_scores: Mapping[str, float] | None,
    ) -> Compression:
        """Write the network, load it, and measure the loaded network."""
        metadata = self.metadata()
        with tempfile.TemporaryDirectory() as directory:
            packed = write_network(rounded.graph, rounded.bits, Path(directory), **metadata)
            network = load(directory)
            num_bytes = sum(file.stat().st_size for file in Path(directory).iterdir())
        test = self.dataset.X_test, self.dataset.y_test
        unpruned = copy.deepcopy(full)
        fold_affines(unpruned)  # so that folding is not counted as a gain of pruning
        before, after = unpruned.network(torch.float32), smaller.network(torch.float32)
        latency = costs.measure_latency({"before": before, "after": network}, full.input.shape)
        if posterior_scores is None and len(test[0]):
            posterior_scores = self.fitted.posterior_scores(*test)
        summary = {
            "format": 1,
            "choice": choice.to_dict(),
            "validation": {"rows": len(self.x), "held_out": self.is_held_out},
            "bits": rounded.to_dict(),
            "layers": costs.layer_rows(full, rounded, packed),
            "rates": costs.rates(self.model.net, smaller, rounded, packed),
            "original": {
                **costs.sizes(full),
                "parameters": sum(p.numel() for p in self.model.net.parameters()),
                "bytes": _plain_bytes(self.model.net),
                "latency_ms": latency["before"],
                "test": self.scores(before, *test, torch.float32),
            },
            "smaller": costs.sizes(smaller) | {"test": self.scores(after, *test, torch.float32)},
            "packed": {
                **costs.sizes(rounded.graph),
                "bytes": num_bytes,
                "latency_ms": latency["after"],
                "test": self.scores(network, *test, torch.float32),
            },
            "posterior": {"test": dict(posterior_scores or {})},
            "difference": self._difference(choice, after),
            "threads": torch.get_num_threads(),
        }
        if "complexity" in metadata:
            summary["complexity"] = metadata["complexity"]
        return Compression(network, choice, rounded, summary, metadata)

    @torch.no_grad()
    def _difference(self, choice: PruningChoice, network: Network) -> float:
        """Return the largest difference between the masked network and the smaller one."""
        rows = _rows(self.x[:COMPARED_ROWS])
        masked_outputs = self.model.evaluate(self.values(choice.view.groups), rows)
        return float((masked_outputs - network(rows.float()).double()).abs().max())

    def metadata(self) -> dict[str, Any]:
        """Return what a reader of the network needs to know."""
        config, schema = self.fitted.config, self.fitted.schema
        metrics = self.fitted.assembly.guide.metrics()
        chosen = {"complexity": metrics["complexity"]} if "complexity" in metrics else {}
        return chosen | {
            "method": config.method,
            "task": schema.task,
            "likelihood": config.likelihood,
            "classes": list(schema.classes),
            "target_mean": schema.target_mean,
            "target_scale": schema.target_scale,
        }


def _rows(x: Array) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def _plain_bytes(net: nn.Module) -> int:
    """Return the size of a file with a network's parameters and statistics in float32."""
    state = {name: value.float().contiguous() for name, value in net.state_dict().items()}
    return len(save(state))
