"""Claims: the event ids that a dataset has rows of, as runs of their digests in `processed_event_ids`.

A run is added by the transaction that lands the rows. That transaction swaps the pointer of the dataset's
table, too, and so holds a lock on it until it ends: of two writers the later one sees what the earlier one
claimed. Nothing is claimed for what did not land, so there is nothing to take back.

Runs of about one size become one as others are added, so that a dataset has a dozen or two, and each id is
written a few times in all. What the ids were is nowhere: to ask for one is to know it. A large run has
a filter beside it, by which ids are looked up (`tables.claim_lookup`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import zip_longest
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.tables import claim_files, claim_filters, claim_lookup
from pulse_pipelines.tables.claim_files import KEPT_IDS, Run
from pulse_pipelines.tables.digests import Digests, Mask
from pulse_pipelines.tables.parquet_files import Positions, ends
from pulse_resources import postgres
from pulse_resources.faults import fail_point
from pulse_resources.settings import load_settings

FAN_IN = 4
"""So many runs of a size, give or take as many times, become one."""
MERGED_IDS = 1_048_576
"""A larger run is not made while events wait for it, and ..."""
LARGE_IDS = MERGED_IDS // 4
"""... one of so many ids is left to `maintenance.merge_claims`, and has a filter."""
WINDOWS = 8
"""Runs are merged within such a part of `upkeep.claim_days` only: retention removes whole runs."""

RUNS = """
SELECT dataset_id, run, newest, ids, ends, claimed_on, CASE WHEN ids < %(kept)s THEN digests END,
    coalesce(octet_length(filter), 0)
FROM processed_event_ids WHERE dataset_id = ANY(%(datasets)s) AND newest > %(after)s ORDER BY dataset_id, run
"""
ADD = """
INSERT INTO processed_event_ids (run, newest, tenant_id, dataset_id, ids, ends, claimed_on, digests, filter)
SELECT run, coalesce(%(newest)s, run), %(tenant)s, %(dataset)s, %(ids)s, %(ends)s,
    coalesce(%(day)s, current_date), %(digests)b, %(filter)b
FROM nextval('claim_runs') run
"""
REMOVE = "DELETE FROM processed_event_ids WHERE dataset_id = %s AND run = ANY(%s)"
EXPIRE = """
DELETE FROM processed_event_ids WHERE tenant_id = %(tenant)s AND claimed_on < current_date - %(days)s
RETURNING ids, ends
"""


@dataclass(frozen=True, eq=False)
class Fresh:
    """Ids of one dataset that nobody had claimed when they were looked up."""

    ids: Digests
    """A run."""
    seen: int
    """The newest addition that was there at that time."""
    merged: Digests
    """With the runs that it replaces."""
    replaces: Sequence[int]
    ends: Sequence[int]
    """By partition: the offset after the last of all of them."""


def runs(
    connection: postgres.Connection, datasets: Iterable[UUID], after: int = 0
) -> Mapping[UUID, list[Run]]:
    """The runs of datasets, in the session of their tenant.

    Args:
        after: an addition; only runs that hold something newer.
    """
    found: dict[UUID, list[Run]] = defaultdict(list)
    values = {"datasets": list(datasets), "after": after, "kept": KEPT_IDS}
    for row in connection.execute(RUNS, values, binary=True):
        found[row[0]].append(Run(*row))
    return found


def claimed(connection: postgres.Connection, of: Iterable[Run], wanted: Digests) -> Mask:
    """Which digests of a run are in any of these."""
    return claim_lookup.holders(connection, of, wanted) > 0


def claimed_ids(connection: postgres.Connection, dataset: Dataset, event_ids: Collection[str]) -> set[str]:
    """Those of the ids that have a row."""
    if not (names := list(set(event_ids))):
        return set()
    digests = Digests.of(names, dataset.claim_seed)
    order = digests.order()
    mask = claimed(connection, runs(connection, [dataset.dataset_id])[dataset.dataset_id], digests[order])
    return {names[place] for place in order[mask]}


def run_with(connection: postgres.Connection, dataset: Dataset, event_id: str) -> Run | None:
    """The run that has an id, if it has a row: that of an event before the run's `ends`.

    Args:
        connection: in a transaction of one snapshot, in the tenant's session.
    """
    wanted = Digests.of([event_id], dataset.claim_seed)
    own = runs(connection, [dataset.dataset_id])[dataset.dataset_id]
    (holder,) = claim_lookup.holders(connection, own, wanted)
    return next((run for run in own if run.run == holder), None)


def fresh(connection: postgres.Connection, among: Sequence[Run], ids: Digests, at: Positions) -> Fresh:
    """What settle needs to add ids: a run that none of the dataset's has any of, and those that it replaces.

    Args:
        among: all runs of the dataset.
        ids: a run.
        at: positions of the events that they are of, in any order.
    """
    replaced = _replaced(len(ids), among)
    parts = [claim_files.digests(connection, run) for run in replaced]
    return Fresh(
        ids,
        seen=max((run.newest for run in among), default=0),
        merged=Digests.joined([ids, *parts]).run() if parts else ids,
        replaces=[run.run for run in replaced],
        ends=latest(ends(at), *(run.ends for run in replaced)),
    )


def add(connection: postgres.Connection, tenant_id: UUID, dataset_id: UUID, added: Fresh) -> bool:
    """Claim ids; False when one of them was claimed since they were looked up.

    To be called by who holds the lock on the table's pointer, in the transaction that lands their rows.
    """
    newer = runs(connection, [dataset_id], after=added.seen)[dataset_id]
    if claimed(connection, newer, added.ids).any():
        return False
    fail_point("claims.before_add")
    # One that retention has removed meanwhile is back: it is forgotten the next time.
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
        newest: the latest addition in it; None: itself.
        day: when that was; None: today.
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
    """Remove runs whose ids are in another one."""
    connection.execute(REMOVE, [dataset_id, list(numbers)])


def expire(connection: postgres.Connection, tenant_id: UUID, days: int) -> tuple[int, Mapping[int, int]]:
    """Forget the claims of a tenant that are older than so many days.

    Returns:
        How many, and by partition the offset after the last event that they were of.
    """
    gone = connection.execute(EXPIRE, {"tenant": tenant_id, "days": days}).fetchall()
    last = latest(*(ends for _, ends in gone))
    return sum(ids for ids, _ in gone), {n: end for n, end in enumerate(last) if end}


def _replaced(added: int, among: Iterable[Run]) -> list[Run]:
    """The runs that a new one of so many ids takes in: wherever there are enough of about its size."""
    today = window(datetime.now(UTC).date())
    small = (run for run in among if run.ids < LARGE_IDS and window(run.claimed_on) == today)
    left = sorted(small, key=lambda run: run.ids)
    chosen: list[Run] = []
    size = added
    while True:
        level = size.bit_length() // 2
        alike = [run for run in left if run.ids.bit_length() // 2 <= level]
        more = sum(run.ids for run in alike)
        if len(alike) < FAN_IN - 1 or size + more > MERGED_IDS:
            return chosen
        chosen += alike
        left = left[len(alike) :]
        size += more


def window(day: date) -> int:
    """Runs of which days may be merged: those of one number."""
    days = load_settings().upkeep.claim_days
    return 0 if days < 0 else day.toordinal() // max(1, days // WINDOWS)


def latest(*each: Iterable[int]) -> list[int]:
    """By partition the last of several ends."""
    return [max(of_partition) for of_partition in zip_longest(*each, fillvalue=0)]
