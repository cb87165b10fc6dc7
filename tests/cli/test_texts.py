"""What the command line says of itself reads as one text, at the width of a terminal."""

import re
from typing import Any

import pytest
from typer.testing import CliRunner

from pulse_api import cli
from pulse_api.cli.parts import flowing, imported
from pulse_api.cli.tenant import limit_text
from pulse_api.http.routes.tenants import NewLimits
from pulse_pipelines.domain.quota import MOST


def commands(part: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    leaves = [(path, part)] if path else []
    for name, child in getattr(part, "commands", {}).items():
        leaves += commands(child, (*path, name))
    return leaves


COMMANDS = commands(imported(cli.app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_and_option_is_explained(path: tuple[str, ...], command: Any) -> None:
    assert command.help, path
    assert "\n" not in command.help.replace("\n\n", ""), "lines end where the terminal's do"
    for parameter in command.params:
        assert parameter.name in ("help", "install_completion", "show_completion") or parameter.help, (
            parameter
        )
        help_text = parameter.help or ""
        assert help_text[:1] == help_text[:1].upper(), f"{help_text!r} begins like a sentence"


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_no_option_is_cut_in_a_terminal_of_80_columns(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert re.findall(r"--[a-z-]*…", result.output) == []


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_help_also_has_the_name_that_shells_use_and_names_no_type_of_flags(path: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(cli.app, [*path, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output
    assert "<bool>" not in long.output


def test_paragraphs_flow() -> None:
    assert flowing("One\n    line.\n\n    Another\n    one.") == "One line.\n\nAnother one."


def test_a_limit_is_shown_with_all_its_digits() -> None:
    texts = [limit_text(value) for value in (MOST, 1_000, 2.5, 1e9, -1, 0)]
    assert texts == ["9,007,199,254,740,992", "1,000", "2.5", "1,000,000,000", "unlimited", "default"]


@pytest.mark.parametrize("name", [name for name, field in NewLimits.model_fields.items() if field.metadata])
def test_a_limit_that_the_api_refuses_is_refused(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    result = CliRunner().invoke(cli.app, ["tenant", "limits", "acme", option, str(MOST + 1)])
    assert result.exit_code == 2
    assert str(MOST) in result.output
