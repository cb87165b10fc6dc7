"""Parts of the command line that are imported when they are wanted, and Pulse itself when one of them works.

All that stands behind a command takes a second and more to import. So a part names modules of Pulse, such as
`from pulse_pipelines import registry`: within `on_demand` a module is loaded when something of it is used,
or a command begins. Help and a mistake in the arguments use nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from inspect import cleandoc
from types import ModuleType
from typing import Any

from typer import Typer
from typer.core import TyperCommand
from typer.main import get_group

from pulse_api.cli.guard import Guarded

LATER = ("pulse_pipelines.", "pulse_resources.", "pulse_api.client", "pulse_api.demo")
"""Modules whose names begin so are loaded on demand."""


class _OnDemand(MetaPathFinder):
    def __init__(self) -> None:
        self.found: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, to be loaded with the first look at what is in it."""
        spec = PathFinder.find_spec(name, path, target) if name.startswith(LATER) else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
            self.found.append(name)
        return spec


@contextmanager
def on_demand() -> Iterator[list[str]]:
    """Modules of Pulse that are imported here for the first time are loaded when they are used.

    Gives their names.
    """
    finder = _OnDemand()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.found
    finally:
        sys.meta_path.remove(finder)


def load(names: Sequence[str]) -> None:
    """Load modules that wait for their first use: two threads that use one at once would see half of it."""
    for name in names:
        vars(sys.modules[name])


STARTS_OR_LOOKS = ("stack", "demo", "config", "doctor")
"""Parts that do something where the stack is stopped; the others would wait for Postgres, and then say so."""


NEEDS_NONE = {("schema", "check")}
"""Commands that need no stack, by their part."""


def _prepare(group: Any, part: str, modules: Sequence[str]) -> None:
    """Have every command of a group, before it works, see that the stack is not stopped, and load modules."""
    for name, command in group.commands.items():
        command.help = flowing(command.help)
        if hasattr(command, "commands"):
            _prepare(command, part, modules)
        elif command.callback is not None:
            looks = part not in STARTS_OR_LOOKS and (part, name) not in NEEDS_NONE
            command.callback = _prepared(command.callback, modules, looks=looks)


def flowing(text: str | None) -> str | None:
    """A docstring whose lines end where the terminal's do: each paragraph is one line."""
    if text is None:
        return None
    return "\n\n".join(" ".join(each.split()) for each in cleandoc(text).split("\n\n"))


def _prepared(callback: Callable[..., Any], modules: Sequence[str], *, looks: bool) -> Callable[..., Any]:
    @wraps(callback)
    def prepared(*arguments: Any, **options: Any) -> Any:
        if looks:
            from pulse_api.cli import running  # it has to do with the settings, help has not

            running.check()
        load(modules)
        return callback(*arguments, **options)

    return prepared


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
        with on_demand() as modules:
            group = get_group(import_module(f"pulse_api.cli.{self._module}").app)
        _prepare(group, self._module, modules)
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
