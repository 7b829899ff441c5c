"""Fold batch normalisation and other factors and shifts of units into adjacent layers."""

from torch import Tensor

from zoo.compress.graph import LayerGraph, LayerNode


def fold_affines(graph: LayerGraph) -> None:
    """Fold every factor and shift of units into the layer before or after it, if that is exact.

    A factor before pooling or flattening is first moved behind it, if the two commute.
    """
    while any(
        _fold_back(graph, node) or _fold_forward(graph, node) or _move_behind(graph, node)
        for node in graph.nodes[:]
        if node.op == "affine" and node.tensors["scale"].numel() == node.shape[0]
    ):
        pass


def add_constant_inputs(node: LayerNode, inputs: Tensor) -> None:
    """Add the contribution of constant inputs to the bias; other inputs are given as zero."""
    sums = node.weight.flatten(2).sum(2) if node.weight.dim() > 2 else node.weight
    node.tensors["bias"] = node.bias() + sums @ inputs


def _parts(affine: LayerNode) -> tuple[Tensor, Tensor]:
    return affine.tensors["scale"].flatten(), affine.tensors["shift"].flatten()


def _scale_weight(node: LayerNode, factors: Tensor, dim: int) -> None:
    factors = factors.reshape([-1 if d == dim else 1 for d in range(node.weight.dim())])
    node.tensors["weight"] = node.weight * factors
    if node.variance is not None:
        node.variance = node.variance * factors.square()


def _fold_back(graph: LayerGraph, affine: LayerNode) -> bool:
    source = affine.source
    acts_on_maps = source.op == "linear" and not source.mixes_units
    if not source.has_weight or acts_on_maps or not _is_only_reader(graph, affine):
        return False
    scale, shift = _parts(affine)
    source.tensors["bias"] = source.bias() * scale + shift
    _scale_weight(source, scale, 0)
    graph.remove(affine)
    return True


def _is_only_reader(graph: LayerGraph, node: LayerNode) -> bool:
    return graph.consumers(node.source) == [node] and graph.output is not node.source


def _fold_forward(graph: LayerGraph, affine: LayerNode) -> bool:
    scale, shift = _parts(affine)
    consumers = graph.consumers(affine)
    has_shift = bool(shift.any())
    foldable = all(node.mixes_units and not (has_shift and node.is_padded) for node in consumers)
    if not consumers or not foldable or graph.output is affine:
        return False
    for node in consumers:
        if has_shift:
            add_constant_inputs(node, shift)
        _scale_weight(node, scale, 1)
    graph.remove(affine)
    return True


def _move_behind(graph: LayerGraph, affine: LayerNode) -> bool:
    after = next(iter(graph.consumers(affine)), None)
    if after is None or not _is_only_reader(graph, after):
        return False
    scale, shift = _parts(affine)
    if after.op == "reshape" and after.split_factor is not None:
        scale, shift = (part.repeat_interleave(after.split_factor) for part in (scale, shift))
    elif after.op == "avg_pool":
        if after.is_padded and bool(shift.any()):
            return False
    elif after.op != "max_pool" or bool((scale < 0).any()):
        return False
    graph.remove(affine)
    graph.replace(after, affine)
    rank = (-1,) + (1,) * (len(after.shape) - 1)
    affine.tensors = {"scale": scale.reshape(rank), "shift": shift.reshape(rank)}
    affine.inputs, affine.shape = [after], after.shape
    graph.add(affine, behind=after)
    return True
