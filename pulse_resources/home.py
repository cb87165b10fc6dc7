"""PULSE_HOME: the folder of an installation, and the settings that its file has."""

import os
from pathlib import Path
from typing import Any

import orjson


def pulse_home() -> Path:
    """The one folder that holds all state of this installation (default `./.pulse`)."""
    return Path(os.environ.get("PULSE_HOME", ".pulse")).absolute()


def in_file() -> dict[str, Any]:
    """What settings.json sets; nothing where there is none.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    try:
        found = orjson.loads((pulse_home() / "settings.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
