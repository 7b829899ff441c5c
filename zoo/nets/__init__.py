"""Networks: plain torch modules, and the short text that names them on the command line."""

from zoo.nets.lenet import lenet5
from zoo.nets.mlp import mlp
from zoo.nets.polynomial import polynomial
from zoo.nets.spec import NETS, build_net, spell_out

__all__ = ["NETS", "build_net", "lenet5", "mlp", "polynomial", "spell_out"]
