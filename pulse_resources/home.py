"""PULSE_HOME: the folder of an installation, and its settings.json."""

import os
from pathlib import Path
from typing import Any

import orjson

from pulse_resources.errors import UserError


def pulse_home() -> Path:
    """Folder that holds all state of this installation (default `./.pulse`)."""
    return Path(os.environ.get("PULSE_HOME", ".pulse")).absolute()


def never_ran(elsewhere: str = "PULSE_HOME=/path") -> UserError:
    """The error of whoever asks in a folder that holds no installation.

    Args:
        elsewhere: names a folder that holds one.
    """
    return UserError(
        f"Pulse has never run in {pulse_home()}",
        fix=f"Start it there with `pulse up`, or name the folder in which it runs: {elsewhere}",
    )


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
