"""Claims: the event ids that a dataset has rows of, as sorted runs of digests in `processed_event_ids`.

A run is inserted by the transaction that lands the rows. That transaction also swaps the table's metadata
pointer, and so holds a lock on it until it ends: of two concurrent writers the later one sees the claims of
the earlier one. Events that did not land have no claim, so no claim ever has to be rolled back.

Runs of about equal size are merged as others are added (size-tiered compaction), so that a dataset has a
dozen or two, and each id is written a few times in all. The ids themselves are not stored: only a known id
can be looked up. A large run has a filter beside it for lookups (`claims.claim_lookup`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import zip_longest
from uuid import UUID

from pulse_pipelines.claims import claim_cache, claim_filters, claim_lookup
from pulse_pipelines.claims.claim_cache import RETAINED_IDS, Run
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.tables.digests import Digests, Mask
from pulse_pipelines.tables.parquet_files import Positions, ends
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

FAN_IN = 4
"""Number of runs of similar size, within this factor, at which they are merged."""
MERGED_IDS = 1_048_576
"""Merged runs do not exceed this many ids while events wait for the merge, and ..."""
LARGE_IDS = MERGED_IDS // 4
"""... runs of this many ids or more are merged by `claims.merge_claims` only, and have a filter."""
WINDOWS = 8
"""Merge windows in `upkeep.claim_days`; runs of different windows stay apart: retention drops whole runs."""

# A pipe may read all rows of its source again at any time: each would be a second row without its claim.
OF_PIPE = """(
    EXISTS (SELECT FROM pipes p WHERE p.dataset_id = {dataset} AND NOT p.delivers)
    OR EXISTS (SELECT FROM entity_syncs s WHERE s.dataset_id = {dataset} AND s.pipe IS NOT NULL))"""
RUNS = f"""
SELECT dataset_id, run, newest, ids, ends, claimed_on,
    CASE WHEN ids < %(kept)s THEN digests END AS digests, coalesce(octet_length(filter), 0) AS filter_bytes,
    %(expire)s AND {OF_PIPE.format(dataset="c.dataset_id")} AS stays
FROM processed_event_ids c
WHERE dataset_id = ANY(%(datasets)s) AND newest > %(after)s ORDER BY dataset_id, run
"""  # noqa: S608 - from constants
ADD = """
INSERT INTO processed_event_ids (run, newest, tenant_id, dataset_id, ids, ends, claimed_on, digests, filter)
SELECT run, coalesce(%(newest)s, run), %(tenant)s, %(dataset)s, %(ids)s, %(ends)s,
    coalesce(%(day)s, current_date), %(digests)b, %(filter)b
FROM nextval('claim_runs') run
"""
REMOVE = "DELETE FROM processed_event_ids WHERE dataset_id = %s AND run = ANY(%s)"
EXPIRE = f"""
DELETE FROM processed_event_ids c WHERE tenant_id = %(tenant)s AND claimed_on < current_date - %(days)s
    AND NOT {OF_PIPE.format(dataset="c.dataset_id")}
RETURNING ids, ends
"""  # noqa: S608 - from constants
EXPIRES = f"SELECT NOT {OF_PIPE.format(dataset='%(dataset)s')}"


@dataclass(frozen=True, eq=False)
class Fresh:
    """Ids of one dataset that were unclaimed when they were looked up."""

    ids: Digests
    """As a run: sorted, without repeats."""
    last_addition: int
    """Number of the latest addition that existed at the lookup."""
    merged: Digests
    """The ids together with the runs that the merge replaces."""
    replaces: Sequence[int]
    ends: Sequence[int]
    """By partition: the offset after the last event of all of these ids."""


def runs(
    connection: postgres.Connection, datasets: Iterable[UUID], after: int = 0
) -> Mapping[UUID, list[Run]]:
    """Select the runs of datasets, in the session of their tenant.

    Args:
        after: number of an addition; only runs with a later addition in them are returned.
    """
    runs: dict[UUID, list[Run]] = defaultdict(list)
    expire = load_settings().upkeep.claim_days >= 0
    values = {"datasets": list(datasets), "after": after, "kept": RETAINED_IDS, "expire": expire}
    for run in postgres.select(connection, Run, RUNS, values, binary=True):
        runs[run.dataset_id].append(run)
    return runs


def claimed(connection: postgres.Connection, of: Iterable[Run], digests: Digests) -> Mask:
    """Mask of the digests of a run that occur in any of these runs."""
    return claim_lookup.holders(connection, of, digests) > 0


def claimed_ids(connection: postgres.Connection, dataset: Dataset, event_ids: Collection[str]) -> set[str]:
    """The subset of the ids that have a row."""
    if not (names := list(set(event_ids))):
        return set()
    digests = Digests.of(names, dataset.claim_seed)
    order = digests.order()
    mask = claimed(connection, runs(connection, [dataset.dataset_id])[dataset.dataset_id], digests[order])
    return {names[place] for place in order[mask]}


def run_with(connection: postgres.Connection, dataset: Dataset, event_id: str) -> Run | None:
    """Find the run that contains an id, provided the id has a row: its event precedes the run's `ends`.

    Args:
        connection: in a transaction with one snapshot, in the tenant's session.
    """
    digest = Digests.of([event_id], dataset.claim_seed)
    candidates = runs(connection, [dataset.dataset_id])[dataset.dataset_id]
    (holder,) = claim_lookup.holders(connection, candidates, digest)
    return next((run for run in candidates if run.run == holder), None)


def fresh(connection: postgres.Connection, among: Sequence[Run], ids: Digests, at: Positions) -> Fresh:
    """Prepare the addition of ids that no run of the dataset contains, with the runs that it replaces.

    Args:
        among: all runs of the dataset.
        ids: a run.
        at: positions of the events with these ids, in any order.
    """
    replaced = _replaced(len(ids), among)
    parts = [claim_cache.digests(connection, run) for run in replaced]
    return Fresh(
        ids,
        last_addition=max((run.newest for run in among), default=0),
        merged=Digests.joined([ids, *parts]).run() if parts else ids,
        replaces=[run.run for run in replaced],
        ends=latest(ends(at), *(run.ends for run in replaced)),
    )


def add(connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, added: Fresh) -> bool:
    """Claim ids; returns False if one of them was claimed since the lookup.

    The caller holds the lock on the table's pointer, in the transaction that lands the rows.
    """
    newer = runs(connection, [dataset_id], after=added.last_addition)[dataset_id]
    if claimed(connection, newer, added.ids).any():
        return False
    fail_point("claims.before_add")
    # A run that retention removed meanwhile is inserted again: it expires the next time.
    remove(connection, dataset_id, added.replaces)
    insert(connection, tenant_id, dataset_id, added.merged, added.ends)
    fail_point("claims.after_add")
    return True


def insert(
    connection: postgres.Connection,
    tenant_id: UUID,
    dataset_id: UUID,
    run: Digests,
    ends: Sequence[int],
    *,
    newest: int | None = None,
    day: date | None = None,
) -> None:
    """Insert a run.

    Args:
        newest: number of the latest addition in it; None: its own.
        day: date of that addition; None: today.
    """
    values = {
        "tenant": tenant_id,
        "dataset": dataset_id,
        "ids": len(run),
        "ends": list(ends),
        "digests": run.packed(),
        "filter": claim_filters.make(run) if len(run) >= LARGE_IDS else None,
        "newest": newest,
        "day": day,
    }
    connection.execute(ADD, values)


def remove(connection: postgres.Connection, dataset_id: UUID, numbers: Sequence[int]) -> None:
    """Delete runs whose ids are in a merged run."""
    connection.execute(REMOVE, [dataset_id, list(numbers)])


def expire(connection: postgres.Connection, tenant_id: UUID, days: int) -> tuple[int, Mapping[int, int]]:
    """Delete the claims of a tenant that are older than `days` days, except those of datasets of pipes.

    Returns:
        Number of claims, and by partition the offset after the last event that they stood for.
    """
    rows = connection.execute(EXPIRE, {"tenant": tenant_id, "days": days}).fetchall()
    last = latest(*(ends for _, ends in rows))
    return sum(ids for ids, _ in rows), {n: end for n, end in enumerate(last) if end}


def expires(connection: postgres.Connection, dataset_id: UUID) -> bool:
    """Whether a dataset's claims expire: no pipe writes it, or ever did."""
    ((does_expire,),) = connection.execute(EXPIRES, {"dataset": dataset_id}).fetchall()
    return bool(does_expire)


def _replaced(added: int, among: Iterable[Run]) -> list[Run]:
    """Choose the runs to merge with a new one of `added` ids: wherever enough of similar size exist."""
    today = datetime.now(UTC).date()
    small = (run for run in among if run.ids < LARGE_IDS and window(run) == window(run, today))
    pending = sorted(small, key=lambda run: run.ids)
    chosen: list[Run] = []
    size = added
    while True:
        level = size.bit_length() // 2
        alike = [run for run in pending if run.ids.bit_length() // 2 <= level]
        more = sum(run.ids for run in alike)
        if len(alike) < FAN_IN - 1 or size + more > MERGED_IDS:
            return chosen
        chosen += alike
        pending = pending[len(alike) :]
        size += more


def window(run: Run, day: date | None = None) -> int:
    """Number of the merge window that a run is in, or would be on a day; only runs of one are merged."""
    days = load_settings().upkeep.claim_days
    if days < 0 or run.stays:
        return 0
    return (day or run.claimed_on).toordinal() // max(1, days // WINDOWS)


def latest(*end_offsets: Iterable[int]) -> list[int]:
    """The highest of several end offsets, by partition."""
    return [max(of_partition) for of_partition in zip_longest(*end_offsets, fillvalue=0)]
