"""The options of a method, in words."""

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from zoo.parsing.fields import accepted, limits
from zoo.priors import Options, parse_priors
from zoo.registry import Entry


def describe_options(entry: Entry) -> list[dict[str, Any]]:
    """Return name, type, range, default and description of each option of a method.

    The options of the guides that follow its default priors are among them.
    """
    described = []
    fields: dict[str, FieldInfo] = dict(entry.method.options.model_fields)
    for prior in parse_priors(entry.priors).values():
        fields |= getattr(prior.family.cls, "options", Options).model_fields
    for name, field in fields.items():
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
