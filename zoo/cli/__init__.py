"""The command line: ``zoo``, or ``python -m zoo``."""

from zoo.cli.app import app, main

__all__ = ["app", "main"]
