"""Sphinx configuration."""

from zoo._version import __version__

project = "pyro-zoo"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
html_theme = "furo"
exclude_patterns = ["_build"]
