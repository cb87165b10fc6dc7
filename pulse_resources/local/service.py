"""Description of a service for the supervisor; it has no state."""

import os
import signal
import ssl
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pulse_resources.local import ports
from pulse_resources.local.accounts import Account
from pulse_resources.local.layout import Layout


@dataclass(frozen=True)
class Service:
    """One long-running program.

    `external` services are given by address: not started, only prepared.
    """

    name: str
    address: str
    ready: Callable[[], bool]
    """Returns within a second or two whether the service accepts requests."""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Services that must be up (and prepared) first, and stop later."""
    setup: Callable[[], None] | None = None
    """Makes folders and configuration before each start."""
    prepare: bool = False
    """Whether `pulse_resources.local.prepare` has a step for it once it is ready."""
    account: Account | None = None
    niceness: int = 0
    """`BACKGROUND`: nobody waits for its single responses; `FOREGROUND`: everybody does."""
    stop_signal: int = signal.SIGTERM
    start_timeout: float = 90.0
    """Seconds without progress after which a start is given up, see `patience`; external ones make none."""
    stop_timeout: float = 20.0
    external: bool = False


def python(*arguments: str) -> tuple[str, ...]:
    """Command that runs a module with this environment's interpreter."""
    return (sys.executable, "-m", *arguments)


def environment(layout: Layout, service: Service) -> dict[str, str]:
    """Environment of the service's processes: ours plus its own, without misleading variables."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("SPARK_REMOTE", "SPARK_CONF_DIR")}
    return inherited | {"PULSE_HOME": str(layout.home)} | dict(service.env)


def listens(address: str) -> Callable[[], bool]:
    """Readiness check: `host:port`, or `unix:` and a path, accepts connections."""
    host, _, port = address.rpartition(":")
    return lambda: ports.answers_at(Path(port)) if host == "unix" else ports.answers(host, int(port))


def responds(url: str, ca_file: Path | None = None) -> Callable[[], bool]:
    """Readiness check: `url` returns 200, from a server certified by one of these authorities."""

    def ready() -> bool:
        try:
            trusted = ssl.create_default_context(cafile=ca_file) if ca_file else None
            with urllib.request.urlopen(url, timeout=2, context=trusted) as answer:  # noqa: S310 - our own URL
                return bool(answer.status == 200)
        except OSError:
            return False

    return ready
