"""Source code of model and guide of a method: the definitions with sample statements."""

import ast
import importlib
import importlib.util
import inspect

from guides.base import Guide
from zoo.network.bnn import BNN
from zoo.registry import Entry

#: A docstring is an expression.
_PREAMBLE = (ast.Expr, ast.Import, ast.ImportFrom)


def model_source(entry: Entry) -> str:
    """Return the code of a method's model: the sample statements of its file, or its network."""
    source = inspect.getsource(importlib.import_module(entry.method.__module__))
    classes = [c for c in entry.method.network.__mro__ if issubclass(c, BNN) and c is not BNN]
    if "pyro.sample(" in source or not classes:
        return sample_code(source)
    return "\n\n\n".join(inspect.getsource(cls).strip() for cls in classes)


def guide_module(entry: Entry, guide: Guide) -> str | None:
    """Return the module of a method's guide: the one of its name, or that of a shared guide.

    A guide that is only composed of the guides of its slots has none.
    """
    named, own = f"guides.{entry.name}", type(guide).__module__
    if importlib.util.find_spec(named) is not None:
        return named
    return None if own == Guide.__module__ else own


def guide_source(module: str) -> str:
    """Return the code of the guides of a module."""
    return sample_code(inspect.getsource(importlib.import_module(module)))


def sample_code(source: str) -> str:
    r"""Return the classes and functions of a module in which `pyro.sample` is called.

    If there are none, because the file only puts together what others define, everything after its
    docstring and imports is returned.

    Examples
    --------
    >>> print(sample_code("import pyro\n\ndef a():\n    pass\n\ndef b():\n    pyro.sample()"))
    def b():
        pyro.sample()
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    found = [node for node in tree.body if _samples(node)]
    if found:
        code = ("\n".join(lines[_first_line(node) - 1 : node.end_lineno]) for node in found)
        return "\n\n\n".join(code)
    rest = [node for node in tree.body if not isinstance(node, _PREAMBLE)]
    return "\n".join(lines[_first_line(rest[0]) - 1 :]).strip() if rest else ""


def _samples(node: ast.stmt) -> bool:
    """Whether a class or function calls `pyro.sample` anywhere inside, or is a guide."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return False
    inside = list(ast.walk(node))
    calls = {ast.unparse(child.func) for child in inside if isinstance(child, ast.Call)}
    methods = {(f.name, len(f.args.args)) for f in inside if isinstance(f, ast.FunctionDef)}
    return "pyro.sample" in calls or ("guide", 1) in methods


def _first_line(node: ast.stmt) -> int:
    """Return the first line of a definition, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first
