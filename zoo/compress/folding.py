"""Fold factors and shifts into the layers beside them: batch normalisation, posterior scales."""

from torch import Tensor

from zoo.compress.graph import Graph, Node


def fold_affines(graph: Graph) -> None:
    """Fold every factor and shift per unit into the layer before or after it, where that is exact.

    A factor that stands before pooling or flattening is moved behind it first, if it commutes.
    """
    moved = True
    while moved:
        moved = any(
            _fold_back(graph, node) or _fold_forward(graph, node) or _move_behind(graph, node)
            for node in list(graph)
            if node.op == "affine" and _is_per_unit(node) and node.name in graph.nodes
        )


def mixes_units(graph: Graph, node: Node) -> bool:
    """Tell whether a node is a layer whose weight has units in its first two dimensions."""
    if node.op == "conv":
        return bool(node.arguments["groups"] == 1)
    return node.op == "linear" and len(graph.shape(node.inputs[0])) == 1


def split_factor(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """Return into how many units a reshape splits each one; None if it does not."""
    return after[0] // before[0] if after[0] % before[0] == 0 else None


def _is_per_unit(node: Node) -> bool:
    return node.tensors["scale"].numel() == node.shape[0]


def _parts(node: Node) -> tuple[Tensor, Tensor]:
    return node.tensors["scale"].flatten(), node.tensors["shift"].flatten()


def _columns(vector: Tensor, like: Tensor, dim: int) -> Tensor:
    return vector.reshape([-1 if d == dim else 1 for d in range(like.dim())])


def _scale_weight(node: Node, factor: Tensor) -> None:
    node.tensors["weight"] = node.weight * factor
    if node.variance is not None:
        node.variance = node.variance * factor.square()


def _fold_back(graph: Graph, affine: Node) -> bool:
    source = graph.nodes.get(affine.inputs[0])
    if source is None or not source.has_weight or graph.output == source.name:
        return False
    is_linear_on_maps = source.op == "linear" and not mixes_units(graph, source)
    if is_linear_on_maps or len(graph.consumers(source.name)) > 1:
        return False
    scale, shift = _parts(affine)
    bias = source.bias() * scale + shift
    _scale_weight(source, _columns(scale, source.weight, 0))
    source.tensors["bias"] = bias
    _remove(graph, affine)
    return True


def _fold_forward(graph: Graph, affine: Node) -> bool:
    scale, shift = _parts(affine)
    consumers = graph.consumers(affine.name)
    has_shift = bool(shift.any())
    foldable = all(
        mixes_units(graph, node) and not (has_shift and node.is_padded) for node in consumers
    )
    if not consumers or not foldable or graph.output == affine.name:
        return False
    for node in consumers:
        if has_shift:
            add_constant_inputs(node, shift)
        _scale_weight(node, _columns(scale, node.weight, 1))
    _remove(graph, affine)
    return True


def add_constant_inputs(node: Node, inputs: Tensor) -> None:
    """Add to the bias what constant inputs contribute, zero where they are not constant."""
    sums = node.weight.flatten(2).sum(2) if node.weight.dim() > 2 else node.weight
    node.tensors["bias"] = node.bias() + sums @ inputs


def _move_behind(graph: Graph, affine: Node) -> bool:
    consumers = graph.consumers(affine.name)
    if len(consumers) != 1 or graph.output == affine.name:
        return False
    after = consumers[0]
    scale, shift = _parts(affine)
    if after.op == "reshape":
        factor = split_factor(affine.shape, after.shape)
        if factor is None:
            return False
        scale, shift = (part.repeat_interleave(factor) for part in (scale, shift))
    elif after.op == "avg_pool":
        if after.is_padded and bool(shift.any()):
            return False
    elif after.op != "max_pool" or bool((scale < 0).any()):
        return False
    rank = (-1,) + (1,) * (len(after.shape) - 1)
    affine.tensors = {"scale": scale.reshape(rank), "shift": shift.reshape(rank)}
    source = affine.inputs[0]
    graph.replace_input(after.name, affine.name)
    affine.inputs, after.inputs, affine.shape = [after.name], [source], after.shape
    following = list(graph.nodes)[list(graph.nodes).index(after.name) + 1 :]
    graph.insert_before(next(iter(following), None), graph.nodes.pop(affine.name))
    return True


def _remove(graph: Graph, node: Node) -> None:
    graph.replace_input(node.name, node.inputs[0])
    del graph.nodes[node.name]
