"""The options of a method, in words."""

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from zoo.parsing.fields import accepted, limits
from zoo.registry import Entry


def describe_options(entry: Entry) -> list[dict[str, Any]]:
    """Return name, type, range, default and description of each option of a method."""
    model: type[BaseModel] | None = getattr(entry, "options", None)
    if model is None:
        return []
    described = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        described.append(
            {
                "name": name,
                "type": accepted(field),
                "range": limits(field),
                "default": None if default is PydanticUndefined else default,
                "description": field.description or "",
            }
        )
    return described


def option_lines(entry: Entry) -> list[str]:
    """Return one line per option: name, type, default and range, and what it does."""
    lines = []
    for option in describe_options(entry):
        notes = [f"default: {option['default']}", option["range"]]
        remark = "; ".join(filter(None, notes))
        lines.append(f"{option['name']} <{option['type']}>  {option['description']}  [{remark}]")
    return lines
