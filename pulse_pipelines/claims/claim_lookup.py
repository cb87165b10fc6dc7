"""Lookup of digests in claim runs: in the filter first, where a run has one, then in the run itself.

A filter passes few of the digests that are not in the run, and gives their candidate places. These are read
from the run: from its file on this machine, or by byte ranges from Postgres. If there are many, as in a batch
that is sent again, the whole run is fetched. So a machine that has no run fetches two bytes per id, not 16.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pulse_pipelines.claims import claim_cache
from pulse_pipelines.claims.claim_cache import Run
from pulse_pipelines.claims.claim_filters import Candidates, Torn
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from pulse_resources.errors import Transient
from pulse_resources.process.faults import fail_point

Holders = npt.NDArray[np.int64]
"""Per digest the number of a run that contains it; 0: none."""

IDS_PER_RANGE = 128
"""Reading one range takes as long as fetching this many ids of a run."""
RANGES = 4_096
"""Ranges per query."""
HEAD_BYTES = 8
READ = """
SELECT w.n, substring(digests FROM %(width)s * start + 1 FOR %(width)s * count),
    substring(digests FROM %(width)s * (ids + start) + 1 FOR %(width)s * count)
FROM unnest(%(runs)s::bigint[], %(starts)s::int[], %(counts)s::int[]) WITH ORDINALITY w (run, start, count, n)
JOIN processed_event_ids p ON p.dataset_id = %(dataset)s AND p.run = w.run ORDER BY w.n
"""

_log = logging.getLogger(__name__)


def holders(connection: postgres.Connection, of: Iterable[Run], digests: Digests) -> Holders:
    """Find for each digest of a run which of several runs of a dataset contains it.

    Raises:
        Transient: as `claim_files.digests`.
    """
    holders = np.zeros(len(digests), np.int64)
    filtered = []
    for run in of:
        if run.filter_bytes:
            filtered.append(run)
        else:
            _find_in_run(connection, run, digests, holders)
    for pieces in claim_cache.wholes(filtered):
        try:
            _filtered(connection, pieces, digests, holders)
        except Torn:
            _log.warning(
                "claims of dataset %s: a filter of run %s is torn", pieces[0].dataset_id, pieces[0].run
            )
            claim_cache.forget_filters(pieces)
            for run in pieces:
                _find_in_run(connection, run, digests, holders)
    return holders


def _find_in_run(connection: postgres.Connection, run: Run, digests: Digests, holders: Holders) -> None:
    holders[digests.within(claim_cache.digests(connection, run))] = run.run


def _filtered(
    connection: postgres.Connection, pieces: Sequence[Run], digests: Digests, holders: Holders
) -> None:
    for runs, filters in claim_cache.filters(connection, pieces):
        candidates = filters.candidates(digests)
        fail_point("claims.filtered")
        unread = np.ones(len(candidates), np.bool_)
        for index in np.unique(candidates.run):
            run, of_run = runs[index], candidates.run == index
            if of_run.sum() * IDS_PER_RANGE > run.ids or claim_cache.mapped(run) is not None:
                at = candidates.digest[of_run]
                claimed = digests[at].within(claim_cache.digests(connection, run))
                holders[at[claimed]] = run.run
                unread &= ~of_run
        _read(connection, runs, digests, candidates[unread], holders)


def _read(
    connection: postgres.Connection,
    runs: Sequence[Run],
    digests: Digests,
    candidates: Candidates,
    holders: Holders,
) -> None:
    """Read the digests of the runs at the candidate places."""
    for first in range(0, len(candidates), RANGES):
        some = candidates[first : first + RANGES]
        numbers = np.array([runs[index].run for index in some.run], np.int64)
        stored = Digests.joined(_ranges(connection, runs[0], numbers, some))
        if len(stored) != some.count.sum():
            raise Transient("a run of claims was replaced meanwhile", fix="Nothing was changed: try again")
        at, of = np.repeat(some.digest, some.count), np.repeat(numbers, some.count)
        same = (stored.heads == digests.heads[at]) & (stored.tails == digests.tails[at])
        holders[at[same]] = of[same]


def _ranges(
    connection: postgres.Connection, of: Run, numbers: Holders, some: Candidates
) -> Iterator[Digests]:
    values = {
        "width": HEAD_BYTES,
        "dataset": of.dataset_id,
        "runs": numbers.tolist(),
        "starts": some.start.tolist(),
        "counts": some.count.tolist(),
    }
    for _, heads, tails in connection.execute(READ, values, binary=True):
        yield Digests(np.frombuffer(heads, "<u8"), np.frombuffer(tails, "<u8"))
