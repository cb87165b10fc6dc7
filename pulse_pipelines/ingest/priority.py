"""Priority: large batches and maintenance pause while a small batch runs.

Processes share the cores equally, so beside a tenant with a large backlog the batches of the others would
take several times as long. Those are short: the large batch loses little by waiting for them.
"""

import multiprocessing
import os
import time
from collections.abc import Callable

from pulse_resources import postgres

# One that takes longer than small batches do (see `ingest.costs`) is not waited for.
SMALL_BATCH_RUNS = """
SELECT EXISTS (
    SELECT FROM ingest_batches b WHERE b.state = 'running' AND b.kind = 'quick'
    AND b.started_at > now() - make_interval(secs => %s))
"""
CHECK_INTERVAL_S = 0.2
NAP_S = 0.05
SMALL_S = 60.0
"""Seconds for which a small batch is waited for."""
NICENESS = 10


class GiveWay:
    """Pauses between pieces of work while a small batch runs, at most for as long as it has worked since."""

    def __init__(self) -> None:
        self._resumed = self._checked = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._checked < CHECK_INTERVAL_S:
            return
        until = now + (now - self._resumed)
        while (waits := _small_batch_runs()) and time.monotonic() < until:
            time.sleep(NAP_S)
        self._checked = time.monotonic()
        if waits or self._checked - now > NAP_S:
            self._resumed = self._checked


def between_pieces(bulk: bool) -> Callable[[], None]:
    """The function that a batch's tasks call between pieces of work; it pauses only a bulk batch."""
    return GiveWay() if bulk else lambda: None


def lower_for_good() -> None:
    """Lower the scheduling priority of this process for the rest of its life, if it is a child process."""
    if multiprocessing.parent_process():
        os.nice(NICENESS)


def _small_batch_runs() -> bool:
    with postgres.transaction("pulse_pipeline") as connection:
        return connection.execute(SMALL_BATCH_RUNS, [SMALL_S]).fetchone() == (True,)
