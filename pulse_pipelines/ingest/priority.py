"""Priority: large batches, and what nobody waits for, give way to small batches while one runs.

Cores are shared equally among all that want one, so beside a tenant that floods the batches of the others
would take several times as long. Theirs are short: the large one loses little by waiting for them.
"""

import multiprocessing
import os
import time
from collections.abc import Callable

from pulse_resources import postgres
from pulse_resources.settings import load_settings

# Not one of its tenants has so many events: what `domain.batch.is_bulk` says of what is planned.
SMALL_BATCH_RUNS = """
SELECT EXISTS (
    SELECT FROM ingest_batches b WHERE b.state = 'running' AND (
        SELECT max(waiting) FROM (
            SELECT sum(r.end_offset - r.start_offset) AS waiting FROM ingest_ranges r
            WHERE r.batch_id = b.batch_id AND r.settled_at IS NULL GROUP BY r.tenant_id) each
    ) < %s)
"""
LOOK_S = 0.2
NAP_S = 0.05
NICENESS = 10


class GiveWay:
    """Called between pieces of work; waits at most as long as it has worked, so that the work gets done."""

    def __init__(self) -> None:
        self._resumed = self._looked = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        until = now + (now - self._resumed)
        while (waits := _small_batch_runs()) and time.monotonic() < until:
            time.sleep(NAP_S)
        self._looked = time.monotonic()
        if waits or self._looked - now > NAP_S:
            self._resumed = self._looked


def between_pieces(bulk: bool) -> Callable[[], None]:
    """What a batch's tasks call between pieces of their work: a small batch's never wait."""
    return GiveWay() if bulk else lambda: None


def for_good() -> None:
    """Leave this process, where it is a run's own, what cores the others do not want."""
    if multiprocessing.parent_process():
        os.nice(NICENESS)


def _small_batch_runs() -> bool:
    flush_rows = load_settings().ingest.flush_rows
    with postgres.transaction("pulse_pipeline") as connection:
        return connection.execute(SMALL_BATCH_RUNS, [flush_rows]).fetchone() == (True,)
