"""Variational posteriors for Pyro models. Usable alone: nothing in here knows the zoo.

A guide of a method is a file named like the method; `SlotGuide` is what they have in common.
"""

from guides.base import Composite, Guide
from guides.full_rank import FullRank
from guides.mean_field import MeanField
from guides.slot import LocScale, SlotGuide

__all__ = ["Composite", "FullRank", "Guide", "LocScale", "MeanField", "SlotGuide"]
