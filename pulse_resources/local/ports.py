"""TCP ports: choice and checks."""

import random
import socket
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

from pulse_resources.errors import Terminal

_LOWEST = 20_000


def is_free(port: int) -> bool:
    """Whether a service could listen on `port` now."""
    with socket.socket() as probe:
        # As servers bind: connections in TIME_WAIT do not count, listeners do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(host: str, port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False


def answers_at(path: Path) -> bool:
    """Whether something accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def named_in(address: str) -> tuple[str, int] | None:
    """The first host and port of an address, such as `sc://host:15002`; None if it has none."""
    if address.startswith("unix:"):
        return None
    first = address.split(",")[0]
    parts = urlsplit(first if "://" in first else f"//{first}")
    port = parts.port or {"http": 80, "https": 443, "sc": 15002}.get(parts.scheme)
    return None if parts.hostname is None or port is None else (parts.hostname, port)


def choose(preferred: int, in_use: Collection[int]) -> int:
    """Choose `preferred` if it is free and not in `in_use`, else any free port."""
    return preferred if preferred not in in_use and is_free(preferred) else choose_any(in_use)


def choose_any(excluded: Collection[int]) -> int:
    """Choose a free port below the ephemeral range: no client takes it while its service restarts."""
    candidates = range(_LOWEST, _ephemeral_start())
    for port in random.sample(candidates, len(candidates)):
        if port not in excluded and is_free(port):
            return port
    raise Terminal(f"No free TCP port between {candidates.start} and {candidates.stop}")


def _ephemeral_start() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 32_768
    return max(int(text.split()[0]), _LOWEST + 1_000)
