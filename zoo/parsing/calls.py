"""Parse text like ``Normal(0, HalfCauchy(1))`` or ``gaussian(noise=0.1)`` without evaluating it.

Text is parsed with `ast` in expression mode. Calls, names, numbers, strings and lists of numbers
are accepted; everything else raises an error. No name is looked up, and no code is executed.
"""

import ast
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from zoo.errors import ZooError, did_you_mean

#: Types of arguments.
Argument: TypeAlias = "float | str | tuple[float, ...] | Call"

T = TypeVar("T")

MAX_TEXT = 1000
MAX_DEPTH = 5


@dataclass(frozen=True)
class Call:
    """A name with arguments, as written."""

    name: str
    positional: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]


def parse_call(text: str, *, what: str, example: str, error: type[ZooError]) -> Call:
    """Parse one call; a bare name is a call without arguments.

    ``what`` and ``example`` are the name of the parsed object and a correct example, for messages.
    """
    return _Reader(text, what, example, error).read()


def bind(
    what: str,
    names: Sequence[str],
    positional: Sequence[T],
    keywords: Mapping[str, T],
    *,
    required: Sequence[str] = (),
    hidden: Sequence[str] = (),
    error: type[ZooError],
) -> dict[str, T]:
    """Assign values to the parameters ``names`` of a call as Python would, with clear messages.

    Parameters that are ``hidden`` follow the others; they are accepted, but not mentioned.
    """
    accepted, listed = [*names, *hidden], ", ".join(names) or "none"
    if len(positional) > len(accepted):
        raise error(f"{what} takes {len(names)} parameters ({listed}). Got {len(positional)}.")
    given = dict(zip(accepted, positional, strict=False))
    for name, value in keywords.items():
        if name not in accepted:
            raise error(
                f"{what} has no parameter {name!r}.{did_you_mean(name, names)} It takes: {listed}."
            )
        if name in given:
            raise error(f"the parameter {name!r} of {what} is given twice.")
        given[name] = value
    missing = [repr(name) for name in required if name not in given]
    if missing:
        raise error(f"{what} needs a value for {', '.join(missing)}.")
    return given


def short(value: object) -> str:
    """Return the repr of a value, shortened for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; endless nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def finite_number(value: object, error: type[ZooError]) -> float:
    """Return a number as float, or raise: text, booleans, infinities and NaN are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"expected a number. Got {short(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise error(f"numbers must be finite. Got {short(value)}.")
    return number


def plain_mapping(values: Mapping[Any, Any], what: str, error: type[ZooError]) -> dict[str, Any]:
    """Return a mapping with JSON types: keys are text, sequences are lists.

    Other types raise ``error``; ``what`` is the name of the mapping in its message.
    """
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise error(f"{what} may hold text, numbers and lists only. Got {short(values)}.") from None
    return plain


class _Reader:
    def __init__(self, text: str, what: str, example: str, error: type[ZooError]) -> None:
        self.text, self.what, self.example, self.error = text, what, example, error

    def fail(self, problem: str) -> ZooError:
        return self.error(
            f"cannot read the {self.what} {short(self.text)}: {problem}. "
            f"Write it like {self.example}."
        )

    def read(self) -> Call:
        if len(self.text) > MAX_TEXT:
            raise self.fail(f"it has {len(self.text)} characters, at most {MAX_TEXT} are accepted")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid literals warn here and fail below
                node = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.fail(f"it is not well formed ({type(error).__name__})") from None
        return self.call(node, depth=1)

    def call(self, node: ast.expr, depth: int) -> Call:
        if isinstance(node, ast.Name):
            return Call(node.id, (), ())
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise self.fail("it is not a name with arguments")
        if depth > MAX_DEPTH:
            raise self.fail(f"it is nested more than {MAX_DEPTH} deep")
        keywords: dict[str, Argument] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise self.fail("'**' is not accepted")
            if keyword.arg in keywords:
                raise self.fail(f"{keyword.arg!r} is given twice")
            keywords[keyword.arg] = self.argument(keyword.value, depth)
        positional = tuple(self.argument(child, depth) for child in node.args)
        return Call(node.func.id, positional, tuple(keywords.items()))

    def argument(self, node: ast.expr, depth: int) -> Argument:
        if isinstance(node, ast.Call):
            return self.call(node, depth + 1)
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return tuple(self.number(child) for child in node.elts)
        return self.number(node)

    def number(self, node: ast.expr) -> float:
        sign = 1.0
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            sign, node = (-1.0 if isinstance(node.op, ast.USub) else 1.0), node.operand
        if not isinstance(node, ast.Constant):
            raise self.fail(f"{type(node).__name__} is not accepted in it")
        return sign * finite_number(node.value, self.error)
