"""PULSE_HOME: the folder of an installation, and its settings.json."""

import os
from pathlib import Path
from typing import Any

import orjson


def pulse_home() -> Path:
    """Folder that holds all state of this installation (default `./.pulse`)."""
    return Path(os.environ.get("PULSE_HOME", ".pulse")).absolute()


def in_file() -> dict[str, Any]:
    """Settings from settings.json; empty if there is no such file.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    try:
        found = orjson.loads((pulse_home() / "settings.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
