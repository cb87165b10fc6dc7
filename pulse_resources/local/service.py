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
    """Returns whether the service accepts requests: within a second or two, or more as it is slow."""
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
    """`BACKGROUND`: no one waits for its single responses; `FOREGROUND`: every caller does."""
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


ANSWER_S, LONGEST_ANSWER_S = 2.0, 32.0
"""Seconds for an answer whether a service is ready: twice as many after each time-out."""


def patient(answers: Callable[[float], bool]) -> Callable[[], bool]:
    """Readiness check whose time-out grows: on a slow machine no answer at all comes within a short one.

    Args:
        answers: asks, with a time-out in seconds; an OSError is a no, and may be or have a TimeoutError.
    """
    seconds = ANSWER_S

    def ready() -> bool:
        nonlocal seconds
        try:
            return answers(seconds)
        except OSError as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                seconds = min(2 * seconds, LONGEST_ANSWER_S)
            return False

    return ready


def responds(url: str, ca_file: Path | None = None) -> Callable[[], bool]:
    """Readiness check: `url` returns 200, from a server certified by one of these authorities."""

    def answers(seconds: float) -> bool:
        trusted = ssl.create_default_context(cafile=ca_file) if ca_file else None
        with urllib.request.urlopen(url, timeout=seconds, context=trusted) as answer:  # noqa: S310 - our own URL
            return bool(answer.status == 200)

    return patient(answers)
