"""Sandbox of a process that runs callers' SQL: limits on its resources and on what it can access."""

import ctypes
import math
import os
import resource
import signal
import socket
import ssl
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from pulse_resources.errors import printable
from pulse_resources.process import landlock, memory
from pulse_resources.settings.service_settings import ObjectStoreSettings

_NAMES = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf")
"""Files that resolving the object store's host name reads."""
_FILES = 256
_SLACK = 512 * 1024 * 1024
"""Memory beyond DuckDB's limit: its estimates are inexact, and results are encoded outside of it."""
_DEATH_SIGNAL, _DUMPABLE = 1, 4


@dataclass(frozen=True)
class Confinement:
    """Limits of a process, which cannot be lifted again."""

    memory_bytes: int
    """Memory limit of DuckDB."""
    cpu_seconds: int
    """Processor time of all threads together."""
    ports: tuple[int, ...]
    readable: tuple[str, ...]
    landlock: bool

    @classmethod
    def to_reach(cls, store: ObjectStoreSettings, *, memory: int, cpu: float, landlock: bool) -> Self:
        """Limits that permit access to the object store only.

        Args:
            memory: bytes.
            cpu: seconds.
            landlock: whether to enforce them with Landlock.
        """
        place = urlsplit(store.endpoint)
        readable = [] if _is_address(place.hostname or "") else list(_NAMES)
        if place.scheme == "https":
            readable.append(ca_file(store))
        port = place.port or (443 if place.scheme == "https" else 80)
        return cls(memory, math.ceil(cpu), (port,), tuple(readable), landlock)

    def as_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = orjson.loads(text)
        return cls(**fields | {"ports": tuple(fields["ports"]), "readable": tuple(fields["readable"])})

    def enter(self) -> None:
        """Apply the limits to this process, which must still be single-threaded, irrevocably.

        Raises:
            OSError: Landlock is required, and the kernel lacks it.
        """
        limit_resources(self)
        if self.landlock:
            landlock.restrict(map(Path, self.readable), self.ports)


def limit_resources(allowed: Confinement) -> None:
    """Apply the kernel's limits: memory, processor time, files; and the process dies with its parent."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # first candidate of the OOM killer
    die_with_parent()
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    limits = {
        resource.RLIMIT_DATA: memory.data_bytes() + allowed.memory_bytes + _SLACK,
        resource.RLIMIT_CPU: allowed.cpu_seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _FILES,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    os.umask(0o777)


def limit_memory(size: int) -> None:
    """Limit a process that decodes a tenant's files: it also dies with its parent, which holds the lease.

    Args:
        size: bytes beyond what it has.
    """
    die_with_parent()
    most = memory.data_bytes() + size
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def last_words(stderr: bytes) -> str:
    """The last line that a failed process wrote, for its error."""
    lines = stderr.decode(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else "it said nothing"


def ca_file(store: ObjectStoreSettings) -> str:
    """The certificate authorities for the object store's certificate."""
    return str(store.ca_file or ssl.get_default_verify_paths().cafile or "")


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            return bool(socket.inet_pton(family, host))
    return False
