"""Setting names: environment variables, and suggestions for misspelt ones."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from pulse_resources.errors import meant

PREFIX, BETWEEN = "PULSE_", "__"
SOURCE = "PULSE_SOURCE__"
"""Variables that begin so hold addresses of tenants' sources, and are not settings."""
LOCAL = "local"
"""Section of settings.json that belongs to `pulse up`."""
_LINK = ("tcp://", "udp://")
"""Values that Kubernetes and Docker put into variables of the same form, such as PULSE_API_PORT."""


def variable(section: str, field: str) -> str:
    """Environment variable of a field."""
    return f"{PREFIX}{section}{BETWEEN}{field}".upper()


def fields(sections: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Section, name and definition of every setting, in order of definition."""
    for section, info in sections.items():
        if info.annotation is not None:
            for name, field in info.annotation.model_fields.items():
                yield section, name, field


def misspelt(sections: Mapping[str, FieldInfo]) -> Iterator[tuple[str, str | None]]:
    """Environment variables that look like settings but are not, each with a suggestion, if any."""
    names = {variable(section, name) for section, name, _ in fields(sections)}
    joined = {name.replace(BETWEEN, "_"): name for name in names}
    for variable_name in sorted(os.environ):
        name = variable_name.upper()
        if not name.startswith(PREFIX) or name.startswith(SOURCE):
            continue
        if BETWEEN not in name:
            if name in joined and not os.environ[variable_name].startswith(_LINK):
                yield variable_name, meant(joined[name], [joined[name]])
        elif BETWEEN.join(name.split(BETWEEN)[:2]) not in names:  # the rest is part of its value
            yield variable_name, meant(name, names)


def unknown(
    sections: Mapping[str, FieldInfo], from_file: Mapping[str, Any]
) -> Iterator[tuple[str, str | None]]:
    """Unknown names in settings.json, as `section.field`, each with a suggestion, if any."""
    names = {f"{section}.{name}" for section, name, _ in fields(sections)}
    for section, values in from_file.items():
        if section == LOCAL:
            continue
        if section not in sections:
            yield section, meant(section, sections)
        elif isinstance(values, dict):
            for name in sorted(f"{section}.{field}" for field in values):
                if name not in names:
                    yield name, meant(name, names)


def explain_errors(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    """Section, environment variable and what is wrong of each setting at fault; never its value."""
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = [str(part) for part in fault["loc"]]
        yield place[0], f"{PREFIX}{BETWEEN.join(place)}".upper(), _plain(fault["msg"])


def explained(error: ValidationError) -> str:
    """Names invalid settings by their environment variables, with the reasons, but never their values."""
    return "; ".join(f"{name}: {problem}" for _, name, problem in explain_errors(error))


def not_json(error: str) -> str:
    """Environment variables that may be meant when a library names only their section."""
    section = re.search(r'field "(\w+)"', error)
    name = f"{PREFIX}{section[1]}".upper() if section else PREFIX
    variables = [
        candidate
        for candidate in sorted(os.environ)
        if candidate.upper() == name or candidate.upper().startswith(f"{name}__")
    ]
    return f"{' or '.join(variables) or name} is not what its setting takes"


def _plain(message: str) -> str:
    """pydantic's message without its prefix for the kind of error."""
    problem = message.removeprefix("Input ").removeprefix("Value error, ")
    return problem[:1].lower() + problem[1:]
