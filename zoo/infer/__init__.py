"""Engines that know Pyro models and guides, and no method."""
