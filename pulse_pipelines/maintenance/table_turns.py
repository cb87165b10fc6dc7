"""Turns of a tenant's own tables in an upkeep: none holds up the others by what its engines wrote.

Each table has a short turn. A table that does not finish has another turn, twice as long, after all others
had theirs: so a large one gets done, too.
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
"""Seconds until a turn that is over is interrupted again, for code that swallowed the interruption."""


class TurnOver(BaseException):
    """A turn is over. Not an Exception: code that reads what tenants wrote catches every Exception."""


def take_turns(
    tables: Sequence[OwnTable], work: Callable[[OwnTable], None], seconds: float
) -> list[tuple[OwnTable, float]]:
    """Call `work` for each table, in random order: no slow table always comes before the same others.

    Call it in the main thread, outside of a transaction.

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
            if (remaining_s := min(turn_s, until - time.monotonic())) <= 0:
                break
            try:
                with _limit(remaining_s):
                    work(table)
                del waiting[table]
            except TurnOver:
                waiting[table] = max(waiting[table], remaining_s)
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
