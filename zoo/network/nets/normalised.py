"""Batch normalisation for networks without it."""

from collections import OrderedDict

from torch import nn

from zoo.errors import ConfigError

#: The layer that normalises the outputs of another.
_NORMALISED_BY: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: nn.BatchNorm1d,
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
}


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether a network has batch normalisation with running statistics."""
    return any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        for module in net.modules()
    )


def with_batch_norm(net: nn.Module) -> nn.Module:
    """Return a network with batch normalisation: the same network, if it has it already.

    In a plain `torch.nn.Sequential` a normalisation layer is inserted after every linear or
    convolutional layer but the last; after layer ``0`` it is named ``0_norm``. The names of the
    other layers do not change. The network is not modified, and its layers are shared.
    """
    if has_batch_norm(net):
        return net
    weighted = [module for module in net.modules() if type(module) in _NORMALISED_BY]
    if not isinstance(net, nn.Sequential) or len(weighted) < 2:
        raise ConfigError(
            f"the network {type(net).__name__} has no batch normalisation. Add a layer such as "
            "torch.nn.BatchNorm1d, or use a torch.nn.Sequential of at least two linear "
            "or convolutional layers, to which it is added automatically."
        )
    return _inserted(net, weighted[-1])


def _inserted(net: nn.Sequential, last: nn.Module) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in net.named_children():
        layers[name] = _inserted(layer, last) if isinstance(layer, nn.Sequential) else layer
        normalisation = _NORMALISED_BY.get(type(layer))
        if normalisation is not None and layer is not last:
            weight = layer.get_parameter("weight")
            # The first dimension of the weight is the number of outputs of both kinds of layers.
            layers[f"{name}_norm"] = normalisation(
                weight.shape[0], device=weight.device, dtype=weight.dtype
            )
    return nn.Sequential(layers)
