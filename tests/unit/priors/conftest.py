import ast
import builtins
import contextlib
import os
import subprocess

import pytest

from zoo.errors import PriorError
from zoo.priors import Prior


@contextlib.contextmanager
def _nothing_may_run(monkeypatch):
    """Refuse whatever could execute text; `ast.parse` itself compiles, but only to a tree."""
    compile_text, import_module = builtins.compile, builtins.__import__

    def only_to_a_tree(source, filename, mode, flags=0, *args, **kwargs):
        assert flags & ast.PyCF_ONLY_AST, "text was compiled to code"
        return compile_text(source, filename, mode, flags, *args, **kwargs)

    def refuse(*args, **kwargs):
        raise AssertionError("something was run, opened or imported")

    def import_by_the_parser(name, *args, **kwargs):
        # Python's own parser normalises names that are not ASCII.
        return import_module(name, *args, **kwargs) if name == "unicodedata" else refuse()

    with monkeypatch.context() as patch:
        for name in ("system", "popen", "mkdir", "execv", "fork"):
            patch.setattr(os, name, refuse)
        patch.setattr(subprocess, "Popen", refuse)
        patch.setattr(builtins, "compile", only_to_a_tree)
        for name in ("eval", "exec", "open"):
            patch.setattr(builtins, name, refuse)
        patch.setattr(builtins, "__import__", import_by_the_parser)  # last: patching imports
        yield


def _refused(source):
    """Parse a source; return the error if it is refused as it should be."""
    try:
        prior = Prior.parse(source)
    except PriorError as error:
        return error
    assert Prior.parse(str(prior)) == prior
    return None


def _check_all(cases):
    count, refusals = 0, 0
    for source in cases:
        count += 1
        try:
            error = _refused(source)
        except Exception as other:
            pytest.fail(f"{source!r:.300} raised {other!r:.300}", pytrace=False)
        if error is not None:
            refusals += 1
            assert str(error).isprintable(), f"{source!r:.300}: not one printable line"
            assert len(str(error)) < 1500
    return count, refusals


@pytest.fixture
def nothing_may_run(monkeypatch):
    """A context in which text cannot be executed without an error."""
    return lambda: _nothing_may_run(monkeypatch)


@pytest.fixture
def check_all():
    """Parse every source; return how many there were and how many were refused."""
    return _check_all
