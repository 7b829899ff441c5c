"""Variational posteriors for Pyro models. Usable alone: nothing in here knows the zoo."""

from guides.base import Composite, Guide
from guides.darts import Darts
from guides.empirical_bayes import EmpiricalBayes
from guides.graves import Graves
from guides.group_horseshoe import GroupHorseshoe
from guides.group_normal_jeffreys import GroupNormalJeffreys
from guides.gumbel_softmax_structure import GumbelSoftmaxStructure
from guides.hypernetwork import Complexity, Hypernetwork
from guides.laplace import Laplace
from guides.mean_field import MeanField
from guides.quantized import Quantized
from guides.sparse_vd import SparseVD
from guides.structured_bp import StructuredBP
from guides.variational_dropout import VariationalDropout

__all__ = [
    "Complexity",
    "Composite",
    "Darts",
    "EmpiricalBayes",
    "Graves",
    "GroupHorseshoe",
    "GroupNormalJeffreys",
    "Guide",
    "GumbelSoftmaxStructure",
    "Hypernetwork",
    "Laplace",
    "MeanField",
    "Quantized",
    "SparseVD",
    "StructuredBP",
    "VariationalDropout",
]
