"""Turns: how long a run holds one of the few places for pipes, which all tenants share.

A run mostly waits for a server of its tenant, which may be slow on purpose. So it holds its place for as long
as rows come and no other tenant's run waits for one. Beyond its turn, while one waits,

- a run that can continue later ends where that is safe, and is ended if it does not;
- any other continues if it is the only one beyond its turn, and sends `ROWS_PER_S` on average.

So of the places all but one change hands, whatever a server does, and a large table is read to its end.
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pulse_resources.errors import Transient, UserError
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.process import memory
from pulse_resources.settings import load_settings

ROWS_PER_S = 100
"""Rows per second, on average, that a run has to send beyond its turn while others wait."""
SIGNAL = signal.SIGUSR2
AGAIN_S = 1.0
"""Between two signals, at least: psycopg runs their handler only once none has come for a tenth of it."""
END_S = 60.0
"""Seconds of such signals after which the process of a run that still waits is killed: it computes within a
library, as what a server demands before it admits anyone, and no signal reaches it there."""
MEMORY = 2 * 1024**3
"""Bytes that a run may take while it waits: client libraries keep answers whole, and some have no end."""
OthersWait = Callable[[], bool]
"""Whether a run of another tenant waits for a place like this run's."""
_log = logging.getLogger("pulse.pipes")


def no_one_waits() -> bool:
    """The answer for a run whose place no other run can wait for."""
    return False


class Turn:
    """The turn of one run, which a thread watches as long as the block of `watched` runs."""

    def __init__(
        self, others_wait: OthersWait, count_rows: Callable[[], int], give_way: Callable[[], None] | None
    ) -> None:
        """Begin a turn.

        Args:
            count_rows: counts what the run has sent or delivered; the count may begin anywhere.
            give_way: asks the run to end where it can continue later; None if it cannot.
        """
        self._others_wait, self._count_rows, self._give_way = others_wait, count_rows, give_way
        self._settings = load_settings().pipes
        self._begun = self._moved = time.monotonic()
        self._first = self._rows = 0
        self._asked: float | None = None
        self._why: str | None = None
        self._may_exceed: bool | None = None
        self._interruptible, self._left, self._places = False, threading.Event(), ExitStack()

    @property
    def gives_way(self) -> bool:
        """Whether the run is to end where that is safe."""
        return self._asked is not None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the turn while the block runs; only waits of the main thread can be interrupted."""
        is_main = threading.current_thread() is threading.main_thread()
        self._first = self._rows = self._count_rows()
        if is_main:
            signal.signal(SIGNAL, self._interrupt)
        thread = threading.Thread(target=self._watch, args=[is_main], name="turn", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._left.set()
            thread.join()
            if is_main:
                signal.signal(SIGNAL, signal.SIG_IGN)  # one may still be on its way

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let the end of the turn interrupt the block, which waits for a server of the tenant.

        Raises:
            Transient: the run has to give up its place.
            UserError: the block takes more than `MEMORY`.
        """
        self._interruptible = True
        try:
            self._interrupt()
            with memory.limited(MEMORY):
                yield
        except MemoryError:
            raise UserError(
                f"the run needs more than the {MEMORY // 2**20} MiB of memory that it may have",
                fix="See what the other end of the pipe answers, and make it smaller",
            ) from None
        finally:
            self._interruptible = False

    def _interrupt(self, *_: Any) -> None:
        if self._interruptible and self._why is not None:
            raise Transient(self._why, rows=self._rows - self._first, seconds=round(self._duration))

    @property
    def _duration(self) -> float:
        return time.monotonic() - self._begun

    def _watch(self, is_main: bool) -> None:
        with self._places:
            interval, ends_at = self._settings.watch_seconds, math.inf
            while not self._left.wait(interval if self._why is None else max(interval, AGAIN_S)):
                try:
                    self._why = self._why or self._over()
                except Exception:  # Postgres or the broker may be away
                    _log.exception("whether a run of a pipe has to give up its place is not known")
                if self._why is None or not is_main:
                    continue
                ends_at = min(ends_at, time.monotonic() + END_S)
                if self._interruptible and time.monotonic() > ends_at:
                    _log.error("a run is killed, which no signal ends: %s", self._why)
                    os.kill(os.getpid(), signal.SIGKILL)
                # Again and again: to end a connection may wait, too.
                signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def _over(self) -> str | None:
        """Why the run has to end; None if it continues."""
        of, rows, now = self._settings, self._count_rows(), time.monotonic()
        if rows != self._rows:
            self._rows, self._moved = rows, now
        if now - self._moved > of.silent_seconds:
            return f"nothing came of the run for {of.silent_seconds:.0f} s"
        if self._asked is not None:
            late = now - self._asked > of.give_way_seconds
            return "other tenants' pipes wait, and the run did not give way" if late else None
        if self._duration <= of.turn_seconds or not self._others_wait():
            return None
        if self._give_way is not None:
            self._give_way()
            self._asked = now
            return None
        if self._may_exceed is None:
            place = self._places.enter_context(locks.session(Lock.LONG_PIPE, "all"))
            self._may_exceed = place is not None
        if not self._may_exceed:
            return "other tenants' pipes wait, and another run continues beyond its turn"
        if (self._rows - self._first) / ROWS_PER_S + of.turn_seconds < self._duration:
            return f"other tenants' pipes wait, and the run sends less than {ROWS_PER_S} rows a second"
        return None
