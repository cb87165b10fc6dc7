"""A few rows of a dataset, to show what its values look like: long texts and lists are cut."""

from collections.abc import Mapping, Sequence
from typing import Any

from pulse_pipelines.ask.meaning import Field, Meaning

CHARACTERS = 200
"""Most characters of a text."""
ITEMS = 3
"""Most items of a list."""


def sql(meaning: Meaning, fields: Sequence[Field], rows: int) -> str:
    """The query for some columns of any rows."""
    names = dict.fromkeys(["timestamp", *(field.name.split(".")[0] for field in fields)])
    chosen = ", ".join(f'"{name}"' for name in names)
    return f'SELECT {chosen} FROM "{meaning.dataset}" LIMIT {rows:d}'  # noqa: S608 - names of Pulse's own


def shown(value: Any) -> Any:
    """A value without the ends of long texts and lists."""
    if isinstance(value, str) and len(value) > CHARACTERS:
        return f"{value[:CHARACTERS]}…"
    if isinstance(value, Mapping):
        return {name: shown(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value[:ITEMS]]
    return value
