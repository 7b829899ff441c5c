"""Capture: one step of inference as a flat graph, replayed without Pyro.

Model, guide, ELBO and autograd are run once under `make_fx`; later steps replay the operations that
were recorded, eagerly or through Inductor. What changes during training must be an input:
parameters, buffers (the weight of the KL among them) and the batch are; a Python number would be
baked in. A new shape of the batch, such as a smaller last one, is captured anew.

An eager replay runs the same operations in the same order with the same random numbers, so its
result is that of the uncaptured step to the last bit. Inductor rounds differently.
"""

import importlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from zoo.infer.objective import Objective

Backend = Literal["replay", "inductor"]
Mode = Literal["auto", "off", "replay", "inductor"]


def record(function: Callable[..., Any], *inputs: Any, backend: Backend) -> Callable[..., Any]:
    """Run a function of tensors once, and return the operations that it did as a function.

    Parameters
    ----------
    function
        Takes tensors, or lists and mappings of them. Other tensors that it uses are constants.
    *inputs
        Arguments to run it with; later ones must have the same shapes.
    backend
        ``replay`` runs the recorded operations one by one, ``inductor`` compiles them.
    """
    leaves, structure = tree_flatten(inputs)

    def flat(*leaves: Any) -> Any:
        return function(*tree_unflatten(leaves, structure))

    with torch.random.fork_rng():  # recording must not move the random numbers
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    _drop_detachments(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    run = graph if backend == "replay" else _compiled(graph, leaves)
    return lambda *inputs: run(*tree_leaves(inputs))


def _compiled(graph: GraphModule, leaves: list[Any]) -> Callable[..., Any]:
    """Compile a recorded graph; nothing is run."""
    inductor = importlib.import_module("torch._inductor")  # half a second, and often not needed
    _keep_products_apart(graph)
    # The generator of the CPU is fast; Inductor's own is made for GPUs.
    on_cpu = all(leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, Tensor))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's, about itself
        compiled: Callable[..., Any] = inductor.compile(
            graph, leaves, options={"fallback_random": on_cpu}
        )
    return compiled


class CapturedObjective:
    """Loss and gradients of an objective from recorded graphs, one for each shape of the batch.

    Parameters
    ----------
    objective
        What to capture.
    backend
        See `record`.
    """

    def __init__(self, objective: Objective, backend: Backend = "replay") -> None:
        self.objective = objective
        self.backend = backend
        self._graphs: dict[Any, Callable[..., list[Tensor]]] = {}
        named = dict(objective.named_parameters())
        self._trained = {name: p for name, p in named.items() if p.requires_grad}
        self._fixed = {name: p for name, p in named.items() if not p.requires_grad}

    def loss_and_gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss, and leave its gradients in the parameters."""
        key = (x.shape, x.dtype, y.shape, y.dtype, x.device, self.objective.training)
        if key not in self._graphs:
            self.objective.check_once(x, y)
            self._graphs[key] = record(self._step, *self._inputs(), x, y, backend=self.backend)
        with torch.no_grad():
            loss, *gradients = self._graphs[key](*self._inputs(), x, y)
        for parameter, gradient in zip(self._trained.values(), gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _state(self) -> dict[str, Tensor]:
        return self._fixed | dict(self.objective.named_buffers())

    def _inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        return list(self._trained.values()), list(self._state().values())

    def _step(
        self, trained: list[Tensor], state: list[Tensor], x: Tensor, y: Tensor
    ) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in trained]
        values = dict(zip(self._trained, leaves, strict=True))
        values |= dict(zip(self._state(), state, strict=True))
        with torch.enable_grad():
            loss = functional_call(self.objective, values, (x, y))
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return [loss.detach(), *gradients]


def _drop_detachments(graph: GraphModule) -> None:
    """Remove operations that cut gradients off: a recorded graph is run without any."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if any(user.op == "output" for user in node.users):
            continue  # a result must not be an input itself
        node.replace_all_uses_with(node.args[0])
        graph.graph.erase_node(node)


def _keep_products_apart(graph: GraphModule) -> None:
    """Write the sum of a matrix product and another matrix as a difference, to the same bits.

    Gradients are such sums (data term plus divergence). Inductor folds the sum into the product,
    which then copies the summand first; a sum left alone becomes part of the loop that follows.
    """
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        pair = [argument for argument in node.args if isinstance(argument, Node)]
        if len(pair) != 2 or node.kwargs or not any(map(_is_product, pair)):
            continue
        product, other = pair if _is_product(pair[0]) else reversed(pair)
        with graph.graph.inserting_before(node):
            negative = graph.graph.call_function(torch.ops.aten.neg.default, (product,))
            difference = graph.graph.call_function(torch.ops.aten.sub.Tensor, (other, negative))
        for made, source in ((negative, product), (difference, node)):
            made.meta = dict(source.meta)
        node.replace_all_uses_with(difference)
        graph.graph.erase_node(node)
    graph.recompile()


def _is_product(node: Node) -> bool:
    """Tell whether a node is a matrix product, or one transposed."""
    while node.target is torch.ops.aten.t.default:
        (node,) = node.all_input_nodes
    return node.target is torch.ops.aten.mm.default


#: Steps that ``auto`` times before it decides, and steps that must be left to make it worth while.
TIMED_STEPS = 20
WORTH_STEPS = 200

#: What a model that cannot be recorded raises.
CANNOT = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)


def cause_of(error: Exception) -> str:
    """Return the kind of an error and the first line that says something."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


class GradientStep:
    """Computes loss and gradients, from a captured graph where that pays.

    Parameters
    ----------
    objective
        The objective to differentiate.
    mode
        ``off``; ``replay`` or ``inductor`` from the first step; ``auto`` times a few steps of each
        and keeps the faster of no capture and replay, whose results are the same to the last bit
        (whether to compile is decided before, see `zoo.infer.mode`).
    num_steps
        Steps that are to come: a short run never waits for a capture.
    """

    def __init__(self, objective: Objective, mode: Mode, num_steps: int) -> None:
        self.objective = objective
        self.captured: CapturedObjective | None = None
        self._parameters = [p for p in objective.parameters() if p.requires_grad]
        self._undecided = mode == "auto" and num_steps >= WORTH_STEPS
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        if mode in ("replay", "inductor"):
            self.captured = CapturedObjective(objective, mode)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of a batch, and leave its gradients in the parameters."""
        started = time.perf_counter()
        loss = self._loss(x, y)
        if self._undecided:
            self._seconds[self.captured is not None].append(time.perf_counter() - started)
            self._decide()
        return loss

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        if self.captured is not None:
            try:
                return self.captured.loss_and_gradients(x, y)
            except CANNOT as error:
                self.captured, self._undecided = None, False
                warnings.warn(
                    f"the step cannot be captured and is run as it is: {cause_of(error)}",
                    stacklevel=4,
                )
        for parameter in self._parameters:
            parameter.grad = None
        loss: Tensor = self.objective(x, y)
        loss.backward()
        return loss.detach()

    def _decide(self) -> None:
        plain, captured = self._seconds[False], self._seconds[True]
        if len(plain) == TIMED_STEPS and self.captured is None:
            self.captured = CapturedObjective(self.objective)
        elif len(captured) == TIMED_STEPS:
            self._undecided = False
            if statistics.median(captured) >= statistics.median(plain):
                self.captured = None
