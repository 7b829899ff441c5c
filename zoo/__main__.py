"""``python -m zoo`` is the command ``zoo``."""

from zoo.cli import main

main()
