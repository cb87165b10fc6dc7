"""Work in a process of its own, to be killed or stopped: forked from one that has imported everything."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from chaos import batches
from chaos.inside import surrounded
from chaos.waiting import PATIENCE_S, stands_still, wait
from pulse_resources.settings import load_settings


@dataclass(frozen=True)
class Forked:
    """A process at work."""

    process: BaseProcess
    log: Path

    def ended(self) -> int:
        """The exit code, as soon as there is one; the negative of a signal."""
        self.process.join(PATIENCE_S)
        assert self.process.exitcode is not None, f"it hangs: {self.said}"
        return self.process.exitcode

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def killed(self) -> None:
        """Wait until it has died at its fail point."""
        assert self.ended() == -signal.SIGKILL, self.said

    def stopped(self) -> None:
        """Wait until it has reached its `stop:` fail point."""

        def stands() -> bool:
            assert self.process.is_alive(), self.said
            return stands_still(self.process.pid)

        wait(stands, "the process did not reach its stop")

    def goes_on(self) -> int:
        """Let it go on after its stop; the exit code."""
        os.kill(self.process.pid or 0, signal.SIGCONT)
        return self.ended()


def forked(work: Callable[..., object], *arguments: object, **environment: str) -> Forked:
    """Begin `work`, which is at the top of its module, with more in its environment."""
    file, name = tempfile.mkstemp(".log", "forked-", load_settings().home)
    os.close(file)
    job = (work, arguments, dict(os.environ) | environment, name)
    return Forked(batches.fork(_run, job), Path(name))


def _run(
    work: Callable[..., object], arguments: tuple[object, ...], environment: Mapping[str, str], log: str
) -> None:
    surrounded(environment, log)
    work(*arguments)
    sys.stdout.flush()
    os._exit(0)  # Spark's client would linger
