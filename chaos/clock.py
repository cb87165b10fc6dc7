"""Wrong clocks: libfaketime, from its package, between a program and the system.

Java keeps the right clock: under libfaketime its threads never sleep.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_resources.local import prerequisites


@dataclass(frozen=True)
class Clock:
    """Clock of all processes with this environment."""

    folder: Path
    """A folder that Postgres' account can read, wherever the checkout is."""
    library: Path

    @classmethod
    def made(cls) -> "Clock":
        """Make a correct clock, with a folder of its own."""
        package = importlib.util.find_spec("libfaketime")
        assert package, "libfaketime is not installed"
        assert package.origin
        origin = Path(package.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        folder = Path(tempfile.mkdtemp(prefix="pulse-chaos-clock-"))
        folder.chmod(0o755)
        clock = cls(folder, folder / origin.name)
        shutil.copy(origin, clock.library)
        java = clock._java_home / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec "{prerequisites.java()}" "$@"\n')
        java.chmod(0o755)
        clock._set("+0")
        return clock

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "JAVA_HOME": str(self._java_home),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    @contextmanager
    def wrong_by(self, hours: float) -> Iterator[None]:
        """Set the clock ahead by `hours` while the block runs."""
        self._set(f"{hours * 3600:+.0f}")
        try:
            yield
        finally:
            self._set("+0")

    def remove(self) -> None:
        """Remove the folder, after all processes with this clock have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _file(self) -> Path:
        return self.folder / "offset"

    @property
    def _java_home(self) -> Path:
        return self.folder / "java"

    def _set(self, offset: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)
