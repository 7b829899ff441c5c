"""Figures of the report, one file per topic, as inline SVG in the colours of the page."""
