"""What a service is to the supervisor: a description, no state."""

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

    `external` ones are given by address: they are not started, only prepared.
    """

    name: str
    address: str
    ready: Callable[[], bool]
    """Answers within a second or two whether the service takes requests."""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Services that must be up (and prepared) first, and stop later."""
    setup: Callable[[], None] | None = None
    """Makes folders and configuration; runs before each start."""
    prepare: bool = False
    """Whether `pulse_resources.local.prepare` has something to do once it is ready."""
    account: Account | None = None
    niceness: int = 0
    """`BACKGROUND`: nobody waits for one answer of it; `FOREGROUND`: everybody does."""
    stop_signal: int = signal.SIGTERM
    start_timeout: float = 90.0
    stop_timeout: float = 20.0
    external: bool = False


def python(*arguments: str) -> tuple[str, ...]:
    """A command that runs a module with the interpreter of this environment."""
    return (sys.executable, "-m", *arguments)


def environment(layout: Layout, service: Service) -> dict[str, str]:
    """What the service's processes see: ours, plus its own, without what would mislead it."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("SPARK_REMOTE", "SPARK_CONF_DIR")}
    return inherited | {"PULSE_HOME": str(layout.home)} | dict(service.env)


def listens(address: str) -> Callable[[], bool]:
    """Ready when `host:port`, or `unix:` and a path, accepts connections."""
    host, _, port = address.rpartition(":")
    return lambda: ports.answers_at(Path(port)) if host == "unix" else ports.answers(host, int(port))


def responds(url: str, ca_file: Path | None = None) -> Callable[[], bool]:
    """Ready when `url` is answered with 200, by a server that one of these authorities vouches for."""

    def ready() -> bool:
        try:
            trusted = ssl.create_default_context(cafile=ca_file) if ca_file else None
            with urllib.request.urlopen(url, timeout=2, context=trusted) as answer:  # noqa: S310 - our own URL
                return bool(answer.status == 200)
        except OSError:
            return False

    return ready
