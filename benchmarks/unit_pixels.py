"""Networks for pixels from 0 to 1, for ``--net module:benchmarks/unit_pixels.py:lenet_fc``.

The images of the zoo have pixels from -1 to 1, so an empty border has the value -1 and contributes
to every sum. This matters with noise on inputs: noise on a pixel that is always empty is harmless
only if empty means zero, as in the published experiments of structured Bayesian pruning.
"""

from torch import Tensor, nn

from zoo.network.nets import lenet5 as _lenet5
from zoo.network.nets import mlp


class UnitPixels(nn.Module):
    """Maps numbers from [-1, 1] to [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (x + 1) / 2."""
        return 0.5 * (x + 1)


def lenet_fc() -> nn.Sequential:
    """Return the dense network of structured Bayesian pruning."""
    return nn.Sequential(UnitPixels(), *mlp([784, 500, 300, 10]))


def lenet5() -> nn.Sequential:
    """Return LeNet-5 in the Caffe variant."""
    return nn.Sequential(UnitPixels(), *_lenet5((1, 28, 28), 10))
