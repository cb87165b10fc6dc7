"""Lazy imports of the command line: subcommands on use, and modules of Pulse when a command runs.

Importing everything behind a command takes a second and more. A subcommand's module imports modules of Pulse,
such as `from pulse_pipelines import registry`; within `on_demand` each is loaded when an attribute is used
or a command begins. Help and errors in the arguments load none.
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

from pulse_api.cli import interrupted
from pulse_api.cli.guard import Guarded

HELP_OPTIONS = ("--help", "-h")
LATER = ("pulse_pipelines.", "pulse_resources.", "pulse_api.sending", "pulse_api.demo")
"""Prefixes of modules that are loaded on demand."""


class _OnDemand(MetaPathFinder):
    def __init__(self) -> None:
        self.module_names: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module that is loaded when an attribute is first used."""
        spec = PathFinder.find_spec(name, path, target) if name.startswith(LATER) else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
            self.module_names.append(name)
        return spec


@contextmanager
def on_demand() -> Iterator[list[str]]:
    """Make modules of Pulse that are first imported in the block load on use.

    Yields the list of their names.
    """
    finder = _OnDemand()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.module_names
    finally:
        sys.meta_path.remove(finder)


def load(names: Sequence[str]) -> None:
    """Load lazy modules: two threads that trigger the load of one at once would see it half loaded."""
    for name in names:
        vars(sys.modules[name])


STARTS_OR_LOOKS = ("stack", "demo", "config", "doctor")
"""Parts that work while the stack is stopped; the others would wait for Postgres, and then fail."""


NEEDS_NONE = {("schema", "check")}
"""Commands that need no stack, as pairs of part and name."""


def _prepare(group: Any, part: str, modules: Sequence[str]) -> None:
    """Make every command of a group check that the stack is not stopped, and load modules, before it runs."""
    _name_no_type_of_flags(group)
    for name, command in group.commands.items():
        command.help = flowing(command.help)
        if hasattr(command, "commands"):
            _prepare(command, part, modules)
            continue
        _name_no_type_of_flags(command)
        if command.callback is not None:
            looks = part not in STARTS_OR_LOOKS and (part, name) not in NEEDS_NONE
            command.callback = _prepared(command.callback, modules, looks=looks)


def _name_no_type_of_flags(command: Any) -> None:
    """Let help name no type beside a flag: `--json <bool>` reads as if it took a value."""
    context = command.context_class(command, help_option_names=list(HELP_OPTIONS))
    for option in command.get_params(context):
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""


def flowing(text: str | None) -> str | None:
    """A docstring with each paragraph on one line, so that the terminal wraps it."""
    if text is None:
        return None
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(text).split("\n\n"))


def _prepared(callback: Callable[..., Any], modules: Sequence[str], *, looks: bool) -> Callable[..., Any]:
    @wraps(callback)
    def prepared(*arguments: Any, **options: Any) -> Any:
        with interrupted.later():
            if looks:
                from pulse_api.cli import stack_check  # it loads the settings, which help does not need

                stack_check.check()
            load(modules)
        return callback(*arguments, **options)

    return prepared


class Part(TyperCommand):
    """Placeholder for a command, or a group, of the module `pulse_api.cli.<module>`.

    Args:
        name: the subcommand of `pulse`.
        line: its help in the list of all commands.
    """

    def __init__(self, name: str, module: str, line: str) -> None:
        super().__init__(name, help=line)
        self._module = module

    def imported(self) -> Any:
        """The actual command or group."""
        with interrupted.later(), on_demand() as modules:
            group = get_group(import_module(f"pulse_api.cli.{self._module}").app)
        _prepare(group, self._module, modules)
        return group.commands.get(str(self.name), group)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **more: Any) -> Any:
        """The context of the actual command, so that it is run."""
        return self.imported().make_context(info_name, args, parent, **more)


def group_of(parts: Mapping[str, tuple[str, str]]) -> type[Guarded]:
    """Class of a guarded group with these parts: name to module and line of help."""

    class Parts(Guarded):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands.update({name: Part(name, *where) for name, where in parts.items()})
            _name_no_type_of_flags(self)

    return Parts


def imported(app: Typer) -> Any:
    """The whole command line, with every part imported."""
    group: Any = get_group(app)
    for name, part in group.commands.items():
        if isinstance(part, Part):
            group.commands[name] = part.imported()
    return group
