"""Networks: plain torch modules, and their names on the command line."""

from zoo.network.nets.architectures import lenet5, mlp, polynomial
from zoo.network.nets.graph import Choice, Graph, Mixed, choices, mixtures
from zoo.network.nets.graph_spec import cell_spec, graph_net
from zoo.network.nets.spec import NETS, build_net, spell_out

__all__ = [
    "NETS",
    "Choice",
    "Graph",
    "Mixed",
    "build_net",
    "cell_spec",
    "choices",
    "graph_net",
    "lenet5",
    "mixtures",
    "mlp",
    "polynomial",
    "spell_out",
]
