"""What is wrong with the settings: each fault by itself, and the settings without the sections at fault."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import ValidationError
from pydantic_settings import PydanticBaseSettingsSource, SettingsError
from typing_extensions import override

from pulse_resources.errors import UserError
from pulse_resources.home import in_file, pulse_home
from pulse_resources.settings import Settings
from pulse_resources.settings.setting_names import (
    BETWEEN,
    PREFIX,
    explain_errors,
    misspelt,
    not_json,
    unknown,
)

_SHOW = "Correct it; `pulse config` shows what is in force and where it comes from"


@dataclass(frozen=True)
class Fault:
    """One setting that is wrong; never its value."""

    name: str
    problem: str
    fix: str


@dataclass
class ParsedSettings:
    """The faults, and what can be used in spite of them."""

    settings: Settings | None
    """With the defaults in the sections at fault; None: the file cannot be read."""
    faults: list[Fault] = field(default_factory=list)
    sections: set[str] = field(default_factory=set)
    """At fault."""


class _OfEnvironment(Settings):
    """Settings of the environment alone, whatever settings.json says."""

    @classmethod
    @override
    def settings_customise_sources(
        cls,
        settings_cls: type,
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def check_environment() -> None:
    """Raise UserError if a variable of the environment is wrong, before anything is made by it."""
    parsed = ParsedSettings(None)
    while parsed.settings is None:
        parsed.settings = _read(parsed, _OfEnvironment)
    if parsed.faults:
        problems = "; ".join(f"{fault.name}: {fault.problem}" for fault in parsed.faults)
        raise UserError(f"a setting is wrong: {problems}", fix=parsed.faults[0].fix)


def parse_settings() -> ParsedSettings:
    """Read the settings of this process, section by section."""
    parsed = ParsedSettings(None)
    try:
        from_file = in_file()
    except (OSError, ValueError) as error:
        fix = "Repair it, or run `pulse up`: it writes the file again"
        parsed.faults.append(Fault(str(pulse_home() / "settings.json"), f"cannot be read: {error}", fix))
        return parsed
    for name, meant in misspelt(Settings.model_fields):
        parsed.faults.append(Fault(name, "is not a setting", meant or "Unset it; `pulse config` shows all"))
    for name, meant in unknown(Settings.model_fields, from_file):
        parsed.faults.append(Fault(f"{name} in settings.json", "is not a setting", meant or "Remove it"))
    while parsed.settings is None:
        parsed.settings = _read(parsed, Settings)
    return parsed


def _read(faults: ParsedSettings, kind: type[Settings]) -> Settings | None:
    """The settings with defaults in the sections at fault; None: one more section is at fault."""
    defaults = {section: _default(section) for section in faults.sections}
    try:
        with _without_variables_of(faults.sections):
            return kind(**defaults)  # type: ignore[arg-type]
    except ValidationError as error:
        for section, name, problem in explain_errors(error):
            faults.faults.append(Fault(name, problem, _SHOW))
            faults.sections.add(section)
    except SettingsError as error:
        named = re.search(r'field "(\w+)"', str(error))
        if named is None or named[1] in faults.sections:
            raise
        fix = 'Write lists and mappings as JSON: ["log"]'
        faults.faults.append(Fault(not_json(str(error)).partition(" is not ")[0], "is not JSON", fix))
        faults.sections.add(named[1])
    return None


def _default(section: str) -> object:
    return Settings.model_fields[section].default


@contextmanager
def _without_variables_of(sections: set[str]) -> Iterator[None]:
    """The environment without what sets these sections, while the block runs."""
    heads = tuple(f"{PREFIX}{section}".upper() for section in sections)
    names = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.upper() in heads or name.upper().startswith(tuple(head + BETWEEN for head in heads))
    }
    try:
        yield
    finally:
        os.environ.update(names)
