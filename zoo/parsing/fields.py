"""What the fields of a pydantic model accept, in words: for flags, help texts and listings."""

from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

#: Names of limits, and their signs right and left of the value.
_SIGNS = {"ge": (">=", "<="), "gt": (">", "<"), "le": ("<=", ">="), "lt": ("<", ">")}


def kind(field: FieldInfo) -> type:
    """Return the type of a field's values, the first one of a union; text for a ``Literal``."""
    first = _members(field.annotation)[0]
    origin = get_origin(first) or first
    return origin if isinstance(origin, type) else str


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Return the values of a ``Literal``, or nothing."""
    for member in _members(field.annotation):
        if get_origin(member) is Literal:
            return tuple(map(str, get_args(member)))
    return ()


def accepted(field: FieldInfo) -> str:
    """Return the choices of a field, or the name of its type."""
    return "|".join(choices(field)) or kind(field).__name__


def limits(field: FieldInfo) -> str:
    """Return the range of a number, such as ``0 <= x < 1`` or ``x > 0``; empty if unlimited."""
    found = [
        (f"{getattr(item, name):g}", *signs)
        for name, signs in _SIGNS.items()
        for item in field.metadata
        if getattr(item, name, None) is not None
    ]
    if not found:
        return ""
    last, sign, _ = found[-1]
    first = f"{found[0][0]} {found[0][2]} " if len(found) == 2 else ""
    return f"{first}x {sign} {last}"


def _members(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself, without None."""
    is_union = get_origin(annotation) in (Union, UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    return [member for member in members if member is not NoneType]
