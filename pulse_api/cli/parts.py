"""Parts of the command line that are imported when they are wanted: some take more than a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from typer import Typer
from typer.core import TyperCommand
from typer.main import get_group

from pulse_api.cli.guard import Guarded


class Part(TyperCommand):
    """A command, or a group of them, of the module `pulse_api.cli.<module>`.

    Args:
        name: the word behind `pulse`.
        line: its help in the list of all commands.
    """

    def __init__(self, name: str, module: str, line: str) -> None:
        super().__init__(name, help=line)
        self._module = module

    def imported(self) -> Any:
        """The command or the group itself."""
        group = get_group(import_module(f"pulse_api.cli.{self._module}").app)
        return group.commands.get(str(self.name), group)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **more: Any) -> Any:
        """The context of the command itself, which is what runs in it."""
        return self.imported().make_context(info_name, args, parent, **more)


def group_of(parts: Mapping[str, tuple[str, str]]) -> type[Guarded]:
    """The class of a guarded group that has these parts: by name, the module and the line of help."""

    class Parts(Guarded):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.commands.update({name: Part(name, *where) for name, where in parts.items()})

    return Parts


def imported(app: Typer) -> Any:
    """The whole of a command line, every part of it imported."""
    group: Any = get_group(app)
    for name, part in group.commands.items():
        if isinstance(part, Part):
            group.commands[name] = part.imported()
    return group
