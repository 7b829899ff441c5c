"""Batch normalisation for networks that were written without it."""

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
    """Tell whether a network has batch normalisation with running statistics."""
    return any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        for module in net.modules()
    )


def with_batch_norm(net: nn.Module) -> nn.Module:
    """Return a network that has batch normalisation: the same one, if it has already.

    In a plain `torch.nn.Sequential` every linear or convolutional layer but the last is followed by
    a normalisation layer; behind layer ``0`` it is called ``0_norm``, and the names of the others
    stay. The network itself is left alone, its layers are shared.
    """
    if has_batch_norm(net):
        return net
    weighted = [module for module in net.modules() if type(module) in _NORMALISED_BY]
    if not isinstance(net, nn.Sequential) or len(weighted) < 2:
        raise ConfigError(
            f"the network {type(net).__name__} has no batch normalisation. Put a layer like "
            "torch.nn.BatchNorm1d between its layers; a torch.nn.Sequential of at least two linear "
            "or convolutional layers gets them by itself."
        )
    return _inserted(net, weighted[-1])


def _inserted(net: nn.Sequential, last: nn.Module) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in net.named_children():
        layers[name] = _inserted(layer, last) if isinstance(layer, nn.Sequential) else layer
        normalisation = _NORMALISED_BY.get(type(layer))
        if normalisation is not None and layer is not last:
            weight = layer.get_parameter("weight")
            # The outputs of both kinds of layer are the first dimension of the weight.
            layers[f"{name}_norm"] = normalisation(
                weight.shape[0], device=weight.device, dtype=weight.dtype
            )
    return nn.Sequential(layers)
