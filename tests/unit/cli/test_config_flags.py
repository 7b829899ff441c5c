"""The flags of ``zoo fit`` are the fields of `RunConfig`."""

from typing import Any, Literal

import pytest
import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

import zoo.cli
from zoo.cli.config_flags import SectionedCommand, flag_name, flags_of, given_values, help_text
from zoo.cli.fit import fit
from zoo.fit.config import RunConfig

FILE_ONLY = {"data_sha256"}


def parameters_of_fit():
    command = typer.main.get_command(zoo.cli.app).commands["fit"]
    return {parameter.name: parameter for parameter in command.params}


class Small(BaseModel):
    name: str = Field(description="A required one.")
    level: Literal["low", "high"] = Field("low", description="A choice.")
    share: float = Field(0.5, ge=0.0, lt=1.0, description="A share.")
    swift: bool = Field(False, description="A switch.")
    extras: dict[str, Any] = Field(default_factory=dict, description="A mapping.")
    columns: tuple[str, ...] = Field((), json_schema_extra={"section": "Data"})
    checksum: str = Field("", json_schema_extra={"section": None})


def command_of(model):
    """A command of its own that hands its settings to a list."""
    app, received = typer.Typer(rich_markup_mode=None), []

    @app.command(cls=SectionedCommand)
    @flags_of(model)
    def run(*, out: str = "here", **settings: Any) -> None:
        received.append((out, given_values(model, settings)))

    return app, received


@pytest.mark.parametrize("name", sorted(RunConfig.model_fields.keys() - FILE_ONLY))
def test_every_field_is_a_flag_with_its_description(name):
    field, parameter = RunConfig.model_fields[name], parameters_of_fit()[name]
    assert field.description
    assert parameter.help.startswith(field.description)
    if name != "method":
        assert parameter.opts == [flag_name(name, field)]


def test_what_only_a_file_can_hold_is_no_flag():
    assert not FILE_ONLY & parameters_of_fit().keys()


def test_no_field_is_typed_a_second_time():
    own = fit.__kwdefaults__
    assert own.keys() >= {"config", "out", "resume"}
    assert not own.keys() & RunConfig.model_fields.keys()


def test_a_new_field_becomes_a_flag():
    class Larger(RunConfig):
        momentum: float = Field(0.9, gt=0.0, le=1.0, description="Momentum.")

    app, received = command_of(Larger)
    outcome = CliRunner().invoke(app, ["mean_field", "--momentum", "0.5"])
    assert outcome.exit_code == 0, outcome.output
    assert received == [("here", {"method": "mean_field", "momentum": "0.5"})]
    assert "--momentum <float>" in CliRunner().invoke(app, ["--help"]).output


def test_values_arrive_as_given_and_what_is_not_given_is_left_out():
    app, received = command_of(Small)
    arguments = ["x", "--no-swift", "--extra", "a=1", "--extra", "b=c", "--column", "u"]
    assert CliRunner().invoke(app, [*arguments, "--out", "there"]).exit_code == 0
    given = {"name": "x", "swift": False, "extras": {"a": 1, "b": "c"}, "columns": ["u"]}
    assert received == [("there", given)]
    assert CliRunner().invoke(app, []).exit_code == 0
    assert received[1] == ("here", {})


def test_help_has_sections_choices_ranges_and_defaults():
    app, _ = command_of(Small)
    text = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for part in (
        "Arguments: name",
        "--level <low|high> A choice. [default: low]",
        "--share <float> A share. [default: 0.5; 0 <= x < 1]",
        "--swift / --no-swift A switch.",
        "--extra <name=value> A mapping. [repeatable]",
        "Data: --column <str>",
        "Run: --out",
    ):
        assert part in text
    assert "checksum" not in text


def test_a_default_of_the_method_is_announced():
    assert "default: set by the method" in help_text("lr", RunConfig.model_fields["lr"])
    assert "default" not in help_text("target", RunConfig.model_fields["target"])
