"""What the command line says of itself reads as one text, at the width of a terminal."""

from typing import Any

import pytest

from pulse_api import cli
from pulse_api.cli.parts import flowing, imported


def commands(part: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = [(path, part)] if path else []
    for name, each in getattr(part, "commands", {}).items():
        found += commands(each, (*path, name))
    return found


COMMANDS = commands(imported(cli.app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_every_command_and_option_is_explained(path: tuple[str, ...], command: Any) -> None:
    assert command.help, path
    assert "\n" not in command.help.replace("\n\n", ""), "lines end where the terminal's do"
    for parameter in command.params:
        assert parameter.name in ("help", "install_completion", "show_completion") or parameter.help, (
            parameter
        )
        said = parameter.help or ""
        assert said[:1] == said[:1].upper(), f"{said!r} begins like a sentence"


def test_paragraphs_flow() -> None:
    assert flowing("One\n    line.\n\n    Another\n    one.") == "One line.\n\nAnother one."
