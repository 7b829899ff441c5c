"""Sphinx configuration. The page of methods is made from the registry."""

from pathlib import Path

from zoo._version import __version__
from zoo.registry import get, list_models

project = "pyro-zoo"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
html_theme = "furo"
exclude_patterns = ["_build"]

_pages = [f".. automodule:: {get(name).method.__module__}\n" for name in list_models()]
_titles = [f"{name}\n{'-' * len(name)}\n" for name in list_models()]
_sections = "\n".join(title + "\n" + page for title, page in zip(_titles, _pages, strict=True))
(Path(__file__).parent / "methods.rst").write_text(
    f"Methods\n=======\n\n{_sections}", encoding="utf-8"
)
