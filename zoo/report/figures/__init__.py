"""Figures of the report, one file per theme; every one is inline SVG that follows the page."""
