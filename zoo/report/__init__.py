"""Reports: one self-contained page per run, made without torch or Pyro."""

from zoo.report.page import render_page

__all__ = ["render_page"]
