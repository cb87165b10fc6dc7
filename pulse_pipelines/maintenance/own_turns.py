"""Turns of a tenant's own tables in an upkeep: none holds up the others by what its engines wrote.

Each table has a short turn. One that does not finish has another when all others had theirs, twice as long:
so what is large gets done.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from pulse_pipelines.lake.catalog import OwnTable

FIRST_S = 20.0
"""First turn of a table."""
AGAIN_S = 2.0
"""A turn that is over ends again after this long, where code that it came upon did not notice."""


class TurnOver(BaseException):
    """A turn is over. No Exception: who reads what others wrote catches all of these."""


def take_turns(
    tables: Sequence[OwnTable], work: Callable[[OwnTable], None], seconds: float
) -> list[tuple[OwnTable, float]]:
    """Do the work of each table, in any order: what takes all the time is not always before others.

    Only in the main thread, where no transaction is open.

    Args:
        work: may be interrupted anywhere, and begun again.
        seconds: for all of them.

    Returns:
        Tables whose work was not done, with the longest turn of each: 0 if it had none.
    """
    until, turn_s = time.monotonic() + seconds, FIRST_S
    waiting = dict.fromkeys(random.sample(tables, len(tables)), 0.0)
    while waiting and time.monotonic() < until:
        for table in list(waiting):
            if (longest := min(turn_s, until - time.monotonic())) <= 0:
                break
            try:
                with _limit(longest):
                    work(table)
                del waiting[table]
            except TurnOver:
                waiting[table] = max(waiting[table], longest)
        turn_s *= 2
    return list(waiting.items())


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Limit the time of the block.

    Raises:
        TurnOver: it took longer.
    """
    over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal over
        over = True
        raise TurnOver

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        yield
    except Exception:
        if over:  # a driver's answer to being interrupted
            raise TurnOver from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
