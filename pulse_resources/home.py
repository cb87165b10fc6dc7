"""PULSE_HOME: the folder of an installation, and its settings.json."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import orjson

from pulse_resources.errors import UserError

_LONGEST_SOCKET = 107
"""Maximum length of a Unix socket's path in bytes, set by the kernel."""


def pulse_home() -> Path:
    """Folder that holds all state of this installation (default `./.pulse`)."""
    return Path(os.environ.get("PULSE_HOME", ".pulse")).absolute()


def code_server_socket() -> Path:
    """Socket of Dagster's code server, in a folder that only its owner may enter.

    The folder is in the home, or, where that makes the path too long, in the one for temporary files.
    """
    home = pulse_home()
    path = home / "dagster-code" / "socket"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    key = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"pulse-{os.getuid()}-{key}" / "socket"


def no_installation(elsewhere: str = "PULSE_HOME=/path") -> UserError:
    """The error of whoever asks in a folder that holds no installation.

    Args:
        elsewhere: names a folder that holds one.
    """
    return UserError(
        f"Pulse has never run in {pulse_home()}",
        fix=f"Start it there with `pulse up`, or name the folder in which it runs: {elsewhere}",
    )


def in_file() -> dict[str, Any]:
    """Settings from settings.json; empty if the file does not exist.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    try:
        document = orjson.loads((pulse_home() / "settings.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically; only its owner may read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)
