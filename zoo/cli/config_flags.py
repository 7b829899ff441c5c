"""Flags generated from the fields of a pydantic model."""

import inspect
from collections.abc import Callable
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

#: Kinds of fields whose flags are repeatable.
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

    A required field becomes an argument. Values are passed as text, because the messages of the
    model are better than those of the parser; those that were not given are None.
    """

    def decorate(command: Command) -> Command:
        generated = [_parameter(*item) for item in model.model_fields.items() if section(item[1])]
        own = inspect.signature(command).parameters.values()
        rest = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*generated, *rest])  # type: ignore[attr-defined]
        return command

    return decorate


def given_values(model: type[BaseModel], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the flags that were given, with mappings parsed."""
    values = {name: value for name, value in settings.items() if value not in (None, [])}
    for name, value in values.items():
        if kind(model.model_fields[name]) is dict:
            values[name] = parse_priors(value) if name == "priors" else parse_options(value)
    return values


def flag_name(name: str, field: FieldInfo) -> str:
    """Return the flag of a field, in the singular if it is repeatable: ``--prior``."""
    name = name.removesuffix("s") if kind(field) in _REPEATED else name
    return f"--{name.replace('_', '-')}"


def section(field: FieldInfo) -> str | None:
    """Return the section of the help that a field belongs to; None if it has no flag."""
    extra = field.json_schema_extra
    name = extra.get("section", "Settings") if isinstance(extra, dict) else "Settings"
    return None if name is None else str(name)


def help_text(name: str, field: FieldInfo) -> str:
    """Return a field's description, its default and its range."""
    default = field.get_default(call_default_factory=True)
    if default is None and name in _RECIPE:
        default = "set by the method"
    notes = [
        "repeatable" if kind(field) in _REPEATED else "",
        "" if default in (None, (), {}) else f"default: {default}",
        limits(field),
    ]
    remark = "; ".join(filter(None, notes))
    return f"{field.description or ''}  [{remark}]" if remark else field.description or ""


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    info: Any = typer.Argument(help=field.description)
    if not field.is_required():
        flag, is_switch = flag_name(name, field), kind(field) is bool
        info = typer.Option(
            f"{flag}/--no-{flag[2:]}" if is_switch else flag,
            help=help_text(name, field),
            metavar=None if is_switch else _metavar(name, field),
            rich_help_panel=section(field),
        )
    types: dict[Any, Any] = {bool: bool, dict: list[str], tuple: list[str]}
    declared: Any = Annotated[types.get(kind(field), str) | None, info]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=declared
    )


def _metavar(name: str, field: FieldInfo) -> str:
    if kind(field) is dict:
        return "<pattern=prior>" if name == "priors" else "<name=value>"
    return "<str>" if kind(field) is tuple else f"<{accepted(field)}>"
