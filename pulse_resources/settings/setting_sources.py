"""Setting sources: each setting's value in this process, and where it comes from; no secrets."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import BaseModel

from pulse_resources.home import in_file
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.setting_names import BETWEEN, PREFIX, fields, variable

Source = Literal["default", "file", "environment"]


@dataclass(frozen=True)
class InForce:
    """A setting in force."""

    name: str
    """Environment variable that sets it."""
    value: str
    """Secrets are shown as stars of fixed length; empty if unset."""
    source: Source


def in_force() -> list[InForce]:
    """All settings, section by section. Raises UserError as `load_settings` does."""
    settings = load_settings()
    from_file = in_file()
    return [
        InForce(variable(section, name), _shown(settings, section, name), _source(section, name, from_file))
        for section, name, _ in fields(Settings.model_fields)
    ]


def _source(section: str, name: str, from_file: dict[str, Any]) -> Source:
    variable_name = variable(section, name)
    variables = {variable_set.upper() for variable_set in os.environ}
    if f"{PREFIX}{section}".upper() in variables or any(
        variable_set == variable_name or variable_set.startswith(variable_name + BETWEEN)
        for variable_set in variables
    ):
        return "environment"
    return "file" if name in from_file.get(section, ()) else "default"


def _shown(settings: Settings, section: str, name: str) -> str:
    if (section, name) == ("spark", "remote"):  # its parameters may hold a token
        return settings.spark.place
    part: BaseModel = getattr(settings, section)
    value = part.model_dump(mode="json", include={name})[name]
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
