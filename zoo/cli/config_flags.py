"""Flags made from the fields of a pydantic model, so that each field is written down once."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from zoo.cli.flags import parse_options, parse_priors
from zoo.parsing.fields import accepted, kind, limits
from zoo.registry import Recipe

Command = Callable[..., None]

#: How the flags of a mapping look and are read, where that is not NAME=VALUE.
_MAPPINGS: dict[str, tuple[str, Callable[[Iterable[str]], dict[str, Any]]]] = {
    "priors": ("<pattern=prior>", parse_priors)
}
_ANY_MAPPING = ("<name=value>", parse_options)
_REPEATED = (dict, tuple)
_RECIPE = {field.name for field in fields(Recipe)}


class SectionedCommand(TyperCommand):
    """A command whose help lists options by section."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one list per section, in the order of the first option of each."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            is_argument = parameter.param_type_name == "argument"
            own = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None)
            if record is not None:
                sections.setdefault(own or "Run", []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def flags_of(model: type[BaseModel]) -> Callable[[Command], Command]:
    """Give a command with ``**settings`` a flag for each field of a model.

    A required field becomes an argument. Values arrive as text, because the model checks them with
    better messages than a parser of flags; those that were not given are None.
    """

    def decorate(command: Command) -> Command:
        generated = [_parameter(*item) for item in model.model_fields.items() if section(item[1])]
        own = inspect.signature(command).parameters.values()
        rest = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*generated, *rest])  # type: ignore[attr-defined]
        return command

    return decorate


def given_values(model: type[BaseModel], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the flags that were given, with repeated ones made into mappings."""
    values = {name: value for name, value in settings.items() if value not in (None, [])}
    for name, value in values.items():
        if kind(model.model_fields[name]) is dict:
            _, parse = _MAPPINGS.get(name, _ANY_MAPPING)
            values[name] = parse(value)
    return values


def flag_name(name: str, field: FieldInfo) -> str:
    """Return the flag of a field; one that is repeated is in the singular: ``--prior``."""
    name = name.removesuffix("s") if kind(field) in _REPEATED else name
    return f"--{name.replace('_', '-')}"


def section(field: FieldInfo) -> str | None:
    """Return the section of the help that a field belongs to; None if it has no flag."""
    extra = field.json_schema_extra
    name = extra.get("section", "Settings") if isinstance(extra, dict) else "Settings"
    return None if name is None else str(name)


def help_text(name: str, field: FieldInfo) -> str:
    """Return a field's description, its default and its range."""
    notes = [
        "repeatable" if kind(field) in _REPEATED else "",
        _default(name, field),
        limits(field),
    ]
    remark = "; ".join(filter(None, notes))
    return f"{field.description or ''}  [{remark}]" if remark else field.description or ""


def _default(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is None and name in _RECIPE:
        return "default: set by the method"
    return "" if default in (None, (), {}) else f"default: {default}"


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    declared: Any
    if field.is_required():
        declared = Annotated[str | None, typer.Argument(help=field.description)]
    elif kind(field) is bool:
        declared = Annotated[bool | None, _option(name, field, both=True)]
    elif kind(field) in _REPEATED:
        declared = Annotated[list[str] | None, _option(name, field)]
    else:
        declared = Annotated[str | None, _option(name, field)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=declared
    )


def _option(name: str, field: FieldInfo, *, both: bool = False) -> Any:
    flag = flag_name(name, field)
    return typer.Option(
        f"{flag}/--no-{flag[2:]}" if both else flag,
        help=help_text(name, field),
        metavar=None if both else _metavar(name, field),
        rich_help_panel=section(field),
    )


def _metavar(name: str, field: FieldInfo) -> str:
    if kind(field) is dict:
        return _MAPPINGS.get(name, _ANY_MAPPING)[0]
    return "<str>" if kind(field) is tuple else f"<{accepted(field)}>"
