"""The command line, in this process or in one of its own, and runs that several tests look at."""

import contextlib
import importlib
import io
import os
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

import zoo
import zoo.cli
from zoo.report import figures

TINY = ("--num-steps", "30", "--num-samples", "10")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def finished(self):
        """Whether a fit came to its end, trusted (0) or, as after a few steps, not (3)."""
        return self.code in (0, 3)


@contextlib.contextmanager
def empty_pictures():
    """Leave the panels of reports empty: drawing takes longer than most of these fits.

    Pictures are drawn in the tests of the report.
    """

    def panel(paint, *, alt, **options):
        return Markup('<svg role="img" aria-label="{}"></svg>').format(alt)

    with pytest.MonkeyPatch.context() as patch:
        for module in pkgutil.iter_modules(figures.__path__, figures.__name__ + "."):
            loaded = importlib.import_module(module.name)
            if hasattr(loaded, "panel"):
                patch.setattr(loaded, "panel", panel)
        yield


def run_here(cwd, *arguments):
    """Run the command in this process, which spares the imports of a new one."""
    out, err = io.StringIO(), io.StringIO()
    with (
        empty_pictures(),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["zoo", *map(str, arguments)]),
        pytest.raises(SystemExit) as stop,
    ):
        zoo.cli.main()
    return Outcome(stop.value.code or 0, out.getvalue(), err.getvalue())


def start_process(cwd, *arguments, **options):
    """Start the command in a new process."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(zoo.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture(scope="session")
def command():
    return run_here


@pytest.fixture(scope="session")
def process():
    return start_process


@pytest.fixture
def zoo_here(tmp_path):
    """Run the command in an empty directory."""
    return lambda *arguments: run_here(tmp_path, *arguments)


@pytest.fixture
def refused(tmp_path):
    """Run a command that must end in one line of explanation, and return that line.

    Nothing that passes for a finished run may be left, and unless the error comes up in training
    nothing at all.
    """

    def run(*arguments, leaves_nothing=True):
        before = set(tmp_path.rglob("*"))
        finished = set(tmp_path.rglob("metrics.json"))
        outcome = run_here(tmp_path, *arguments)
        assert outcome.code == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("zoo: error: ")
        assert outcome.err.count("\n") == 1
        assert outcome.err.endswith("\n")
        assert "Traceback" not in outcome.err
        assert set(tmp_path.rglob("metrics.json")) == finished
        if leaves_nothing:
            assert set(tmp_path.rglob("*")) - before <= set(tmp_path.rglob("__pycache__*/**"))
        return outcome.err

    return run


def fit_once(directory, *arguments):
    outcome = run_here(directory, "fit", *arguments, *TINY, "--out", "run")
    assert outcome.finished, outcome
    return directory / "run"


@pytest.fixture(scope="session")
def wine_run(tmp_path_factory):
    """A finished classification; tests read it and leave it as it is."""
    return fit_once(tmp_path_factory.mktemp("wine"), "group_horseshoe", "--data", "wine")


@pytest.fixture(scope="session")
def linear_run(tmp_path_factory):
    return fit_once(tmp_path_factory.mktemp("linear"), "mean_field", "--data", "linear")


@pytest.fixture(scope="session")
def flowers():
    """A table with text as classes and as one of the inputs."""
    rng = np.random.default_rng(0)
    colour = rng.choice(["red", "white"], 60)
    height = rng.normal(3.0, 1.0, 60)
    kind = np.where(height + (colour == "red") > 3.5, "rose", "aster")
    return pd.DataFrame({"height": height, "colour": colour, "kind": kind})


@pytest.fixture(scope="session")
def flower_run(tmp_path_factory, flowers):
    directory = tmp_path_factory.mktemp("flowers")
    flowers.to_csv(directory / "flowers.csv", index=False)
    return fit_once(directory, "mean_field", "--data", "flowers.csv", "--target", "kind")
