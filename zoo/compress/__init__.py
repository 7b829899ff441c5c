"""Compression: what a posterior says can be removed."""

from zoo.compress.groups import GroupView, group_view

__all__ = ["GroupView", "group_view"]
