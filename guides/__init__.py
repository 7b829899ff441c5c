"""Variational posteriors for Pyro models. Usable alone: nothing in here knows the zoo."""

from guides.base import Composite, Guide
from guides.group_horseshoe import GroupHorseshoe
from guides.mean_field import MeanField

__all__ = ["Composite", "GroupHorseshoe", "Guide", "MeanField"]
