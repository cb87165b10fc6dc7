"""File layout of the stack."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import pulse_resources

PRIVATE = 0o700


@dataclass(frozen=True)
class Layout:
    """Paths under one `$PULSE_HOME`."""

    home: Path

    @property
    def settings_file(self) -> Path:
        return self.home / "settings.json"

    @property
    def stack_file(self) -> Path:
        """Ports, process ids, restarts and state of every service; written by the supervisor."""
        return self.home / "stack.json"

    @property
    def requested_file(self) -> Path:
        """Names of services, one line for each `pulse up` that asked a running supervisor for more."""
        return self.home / "stack.wanted"

    @property
    def lock_file(self) -> Path:
        """Locked while a supervisor (or a `pulse up` that prepares one) is alive."""
        return self.home / "stack.lock"

    @property
    def key(self) -> str:
        """Short id of this home for paths outside of it."""
        return hashlib.sha256(str(self.home).encode()).hexdigest()[:12]

    def log(self, service: str) -> Path:
        return self.home / "logs" / f"{service}.log"

    def folder(self, name: str) -> Path:
        """Folder of a service, made on demand; only its owner may read it."""
        path = self.home / name
        path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        return path

    def make(self) -> None:
        # Traversal only: if root starts it, Postgres runs under another user and must reach its data.
        self.home.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.folder("logs")


def repository() -> Path:
    """Checkout that holds `dagster_home/`."""
    return Path(pulse_resources.__file__).resolve().parent.parent


def cache() -> Path:
    """Cache of downloads and builds, shared by all clones of one user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pulse"
