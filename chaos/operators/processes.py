"""Commands in processes of their own, paused and killed according to their steps."""

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson

from chaos import batches
from chaos.operators import commands
from chaos.operators.schedule import Blow, Step
from chaos.waiting import stands_still
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.process.faults import VARIABLE

PATIENCE_S = 600.0
"""Time limit of a command."""
TICK_S = 0.02


@dataclass(frozen=True)
class Ended:
    """A command, and how it ended."""

    step: Step
    how: str
    """`done`, `refused`, `terminal`, `failed`, `killed`, or `hung`."""
    why: str = ""
    """Class of the error."""
    text: str = ""
    result: Any = None
    began: datetime = datetime.min
    ended: datetime = datetime.min

    def __str__(self) -> str:
        return f"{self.step}: {self.how}" + (f" ({self.why}: {self.text})" if self.why else "")


def carry_out(step: Step, tenants: Sequence[Tenant]) -> Ended:
    """Run one command with its fault in a process of its own; returns when the process has ended."""
    began = datetime.now(UTC)
    blow, environment = step.blow, dict(os.environ)
    if blow and blow.point:
        environment[VARIABLE] = blow.point if blow.pause_s is None else f"stop:{blow.point}"
    with tempfile.TemporaryDirectory(prefix="pulse-chaos-") as folder:
        answer = Path(folder) / "answer"
        arguments = (step.action, tenants, step.arguments, environment, str(batches.log()), answer)
        process = batches.fork(commands.perform, arguments)
        hung = not _join(process, blow)
        outcome = orjson.loads(answer.read_bytes()) if answer.exists() else None
    ended = datetime.now(UTC)
    if hung:
        return Ended(step, "hung", began=began, ended=ended)
    if outcome is None:
        killed = blow is not None and blow.pause_s is None and process.exitcode == -signal.SIGKILL
        why = "" if killed else f"exit code {process.exitcode}"
        return Ended(step, "killed" if killed else "failed", why, began=began, ended=ended)
    return Ended(
        step,
        outcome["ended"],
        outcome.get("why", ""),
        outcome.get("text", ""),
        outcome.get("result"),
        began,
        ended,
    )


def _join(process: BaseProcess, blow: Blow | None) -> bool:
    """Wait for a process and apply the fault to it; False if it hung and was killed."""
    began, pending = time.monotonic(), blow
    while process.is_alive() and time.monotonic() - began < PATIENCE_S:
        if pending and _due(process, pending, time.monotonic() - began):
            _strike(process, pending)
            pending = None
        process.join(TICK_S)
    if process.is_alive():
        process.kill()
        process.join()
        return False
    return True


def _due(process: BaseProcess, blow: Blow, passed_s: float) -> bool:
    if blow.point is None:
        return passed_s >= blow.after_s
    return blow.pause_s is not None and stands_still(process.pid)


def _strike(process: BaseProcess, blow: Blow) -> None:
    with suppress(ProcessLookupError):
        if blow.pause_s is None:
            os.kill(process.pid or 0, signal.SIGKILL)
            return
        os.kill(process.pid or 0, signal.SIGSTOP)
        time.sleep(blow.pause_s)
        os.kill(process.pid or 0, signal.SIGCONT)
