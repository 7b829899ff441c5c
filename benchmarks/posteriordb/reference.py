"""Reads data and reference draws from a copy of posteriordb."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import ConfigError

#: The environment variable that names the folder with ``posteriors/``, ``data/`` and so on.
VARIABLE = "ZOO_POSTERIORDB"


def folder() -> Path:
    """Return where posteriordb is.

    Raises
    ------
    ConfigError
        If the environment does not say, or says something else.
    """
    value = os.environ.get(VARIABLE, "")
    path = Path(value)
    if not value or not (path / "posteriors").is_dir():
        said = f"Got {value!r}." if value else "It is not set."
        raise ConfigError(
            f"the environment variable {VARIABLE} must name the folder posterior_database of "
            f"https://github.com/stan-dev/posteriordb, the one that has posteriors/ in it. {said}"
        )
    return path


def names(root: Path) -> list[str]:
    """Return the posteriors of the folder that have reference draws."""
    draws = root / "reference_posteriors/draws/draws"
    return sorted(
        path.stem
        for path in (root / "posteriors").glob("*.json")
        if (draws / f"{path.stem}.json.zip").is_file()
    )


def read_data(root: Path, posterior: str) -> dict[str, Any]:
    """Return the data of a posterior."""
    entry = json.loads((root / "posteriors" / f"{posterior}.json").read_text())
    data: dict[str, Any] = _unzip(root / "data/data" / f"{entry['data_name']}.json.zip")
    return data


def read_draws(root: Path, posterior: str) -> dict[str, np.ndarray]:
    """Return reference draws by parameter, shape ``(chains, draws)``."""
    chains = _unzip(root / "reference_posteriors/draws/draws" / f"{posterior}.json.zip")
    return {name: np.array([chain[name] for chain in chains], float) for name in chains[0]}


def _unzip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(path.name.removesuffix(".zip")))
