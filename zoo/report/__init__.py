"""Reports: self-contained HTML pages generated from saved trees, without torch or Pyro."""

from zoo.report.comparison import render_comparison
from zoo.report.page import render_report

__all__ = ["render_comparison", "render_report"]
