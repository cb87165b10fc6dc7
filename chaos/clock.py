"""A clock that goes wrong: libfaketime between a program and the system, as its package brings it.

Java keeps the right one: under libfaketime its threads do not sleep any more.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.local import prerequisites

_FOLDER = Path(tempfile.gettempdir()) / f"pulse-chaos-clock-{os.getuid()}"
"""Postgres' account must be able to read it, wherever the checkout is."""


@dataclass(frozen=True)
class Clock:
    """The clock of every process that has this environment."""

    name: str
    library: Path

    @classmethod
    def made(cls, name: str) -> "Clock":
        """A clock that is right, of a library in a place that every account can read."""
        package = importlib.util.find_spec("libfaketime")
        assert package, "libfaketime is not installed"
        assert package.origin
        origin = Path(package.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        _FOLDER.mkdir(mode=0o755, exist_ok=True)
        _FOLDER.chmod(0o755)
        library = _FOLDER / origin.name
        shutil.copy(origin, library)
        java = _java_home() / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec "{prerequisites.java()}" "$@"\n')
        java.chmod(0o755)
        clock = cls(name, library)
        clock._set("+0")
        return clock

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "JAVA_HOME": str(_java_home()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @contextmanager
    def wrong_by(self, hours: float) -> Iterator[None]:
        """It shows so many hours too much while the block runs."""
        self._set(f"{hours * 3600:+.0f}")
        try:
            yield
        finally:
            self._set("+0")

    @property
    def _file(self) -> Path:
        return _FOLDER / self.name

    def _set(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)


def _java_home() -> Path:
    return _FOLDER / "java"


def remove() -> None:
    """Nothing stays outside of the home."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
