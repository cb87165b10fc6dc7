"""Merge claims: merges the large claim runs of a dataset into one, split by ranges, for faster lookups.

Settle merges small runs, and never touches a run of `LARGE_IDS`; those are merged here, in the background,
one range of digests at a time, so that the total size does not matter. The pieces of a merged run get the
highest `newest` of their sources, so a batch under way does not take them for new additions.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pulse_pipelines.claims import claim_cache, claim_runs
from pulse_pipelines.claims.claim_cache import Run
from pulse_pipelines.claims.claim_runs import FAN_IN, LARGE_IDS, MERGED_IDS
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

HEADS = 2**64


def merge_claims(dataset: Dataset) -> int:
    """Merge the large runs of a dataset, if there are enough of one size; returns the number of ids merged.

    Raises:
        psycopg.Error: Postgres failed; nothing was changed.
    """
    with postgres.tenant_transaction("pulse_pipeline", dataset.tenant_id, one_snapshot=True) as connection:
        runs = claim_runs.runs(connection, [dataset.dataset_id])[dataset.dataset_id]
        merged = _mergeable(run for run in runs if run.ids >= LARGE_IDS)
        if not merged:
            return 0
        parts = [claim_cache.digests(connection, run) for run in merged]
        ends, newest = claim_runs.latest(*(run.ends for run in merged)), max(run.newest for run in merged)
        day = max(run.claimed_on for run in merged)
        for piece in _pieces(parts):
            claim_runs.insert(
                connection, dataset.tenant_id, dataset.dataset_id, piece, ends, newest=newest, day=day
            )
            fail_point("merge_claims.added")
        claim_runs.remove(connection, dataset.dataset_id, [run.run for run in merged])
        fail_point("merge_claims.before_commit")
    return sum(map(len, parts))


def _mergeable(runs: Iterable[Run]) -> list[Run]:
    """The runs to merge, if any; pieces of one merge count as one run."""
    of_window: dict[int, list[list[Run]]] = defaultdict(list)
    for pieces in claim_cache.wholes(runs):
        of_window[claim_runs.window(pieces[0])].append(pieces)
    for together in of_window.values():
        by_size = sorted(together, key=_ids)
        for count in range(len(by_size), FAN_IN - 1, -1):
            # The larger ones stay as they are until the runs to join them come near their size.
            if _ids(by_size[count - 1]) <= sum(map(_ids, by_size[: count - 1])):
                return [run for pieces in by_size[:count] for run in pieces]
    return []


def _ids(pieces: Sequence[Run]) -> int:
    return sum(run.ids for run in pieces)


def _pieces(parts: Sequence[Digests]) -> Iterator[Digests]:
    """Merge all digests, sorted and without repeats, into pieces of about `MERGED_IDS`."""
    count = max(1, round(sum(map(len, parts)) / MERGED_IDS))
    for number in range(count):
        first, last = (np.uint64(HEADS * n // count) if n < count else None for n in (number, number + 1))
        piece = Digests.joined([_between(part, first, last) for part in parts]).run()
        if len(piece):
            yield piece


def _between(part: Digests, first: np.uint64 | None, end: np.uint64 | None) -> Digests:
    start = np.searchsorted(part.heads, first) if first is not None else 0
    stop = np.searchsorted(part.heads, end) if end is not None else len(part)
    return Digests(part.heads[start:stop], part.tails[start:stop])
