"""The confinement of a process that runs SQL of callers: what it may take, and what it may reach."""

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

from pulse_resources import landlock
from pulse_resources.service_settings import ObjectStoreSettings

_NAMES = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf")
"""What it takes to find the address of the object store by its name."""
_FILES = 256
_SLACK = 512 * 1024 * 1024
"""Memory beyond DuckDB's: its own estimates are not exact, and rows become bytes outside of it."""
_DEATH_SIGNAL, _DUMPABLE = 1, 4


@dataclass(frozen=True)
class Confinement:
    """What a process may have, for good."""

    memory_bytes: int
    """Of DuckDB."""
    cpu_seconds: int
    """Of all its threads together."""
    ports: tuple[int, ...]
    readable: tuple[str, ...]
    landlock: bool

    @classmethod
    def to_reach(cls, store: ObjectStoreSettings, *, memory: int, cpu: float, landlock: bool) -> Self:
        """To reach the object store, and nothing else.

        Args:
            memory: bytes.
            cpu: seconds.
            landlock: whether Landlock holds it.
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
        given: dict[str, Any] = orjson.loads(text)
        return cls(**given | {"ports": tuple(given["ports"]), "readable": tuple(given["readable"])})

    def enter(self) -> None:
        """Confine this process, which has one thread yet, for good.

        Raises:
            OSError: the kernel has no Landlock, and is asked for it.
        """
        limit_resources(self)
        if self.landlock:
            landlock.restrict(map(Path, self.readable), self.ports)


def limit_resources(allowed: Confinement) -> None:
    """The kernel's limits: memory, processor time, files; and nothing of this process outlives its parent."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # whoever has to go, goes first
    libc = ctypes.CDLL(None)
    libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    limits = {
        resource.RLIMIT_DATA: _data_bytes() + allowed.memory_bytes + _SLACK,
        resource.RLIMIT_CPU: allowed.cpu_seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _FILES,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    os.umask(0o777)


def ca_file(store: ObjectStoreSettings) -> str:
    """The authorities that sign the object store's certificate."""
    return str(store.ca_file or ssl.get_default_verify_paths().cafile or "")


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            return bool(socket.inet_pton(family, host))
    return False


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA already."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")
