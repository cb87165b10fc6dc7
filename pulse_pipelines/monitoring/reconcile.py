"""Reconciliation: proves from tables, dead letters and ledger that every event exists exactly once.

Per tenant: drained = landed + duplicates + dead-lettered, and every (partition, offset) below the settled
position is exactly one of a row, a dead letter, a recorded duplicate, an erased row, or an offset without a
message. Each row has a claim of its event id, as far as retention keeps claims, each claim has a row, and
each large run of claims has its own filter, so that no event can land twice and none is refused wrongly.
Missing and duplicate offsets are named. Parts of the raw zone have the lines that were registered.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring import accounts, claimed_rows, raw_duplicates, raw_parts
from pulse_pipelines.monitoring.accounts import Accounts, Offsets, Table
from pulse_pipelines.monitoring.claimed_rows import EVENTS, Rows
from pulse_resources import outages
from pulse_resources.iceberg import readable

LOOKS = 3
"""Attempts to read tables that change while they are read."""
RAW_PARTS = 20
"""Parts of the raw zone that are read, drawn at random, where not all are."""
SHOWN = 10
"""Offsets named per problem; its count is always exact."""
FIXES = {
    "unclaimed": "the rows are right; do not send these events again: each would land a second time",
    "idle_claim": "what these events are is right; one that has to land is sent again under another event id",
    "wrong_filter": "UPDATE processed_event_ids SET filter = NULL WHERE run = <number>, as Postgres' "
    "superuser, and the run itself is asked from then on; what has landed twice is among the other problems",
    "raw": "the rows are right, but this day cannot be rebuilt: put the object back from a backup",
}
"""Next step for each kind of problem that cannot be repaired automatically."""


@dataclass(frozen=True)
class Problem:
    """A discrepancy, with its count and examples."""

    kind: str
    """Kind of discrepancy:

    gap, count        the ledger disagrees with itself, or with the data
    missing           an event is nowhere
    double            an event is in two places
    unaccounted       an event is at an offset that is not settled
    double_id         several rows have one event id
    unclaimed         a row's event id is not claimed: sent again, it would land again
    idle_claim        a claimed event id has no row: sent again, it would not land
    wrong_filter      ids of a large run of claims may not be found: sent again, they would land again
    lost              an event was dropped as a duplicate, and nothing with its id has landed
    unreadable        a file is gone or damaged
    raw               lines of the raw zone are gone or damaged
    """
    where: str
    count: int
    offsets: tuple[int, ...] = ()

    @property
    def fix(self) -> str | None:
        """Next step; None: find the lost events."""
        return FIXES.get(self.kind)


@dataclass
class TenantReport:
    tenant: str
    drained: int = 0
    landed: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        return not self.problems


@dataclass
class _PartitionOffsets:
    """Offsets of one partition, by what became of each event."""

    rows: list[Offsets] = field(default_factory=list)
    without_rows: list[Offsets] = field(default_factory=list)
    once: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """For each settled offset, whether it is accounted for exactly once."""


def reconcile_tenant(tenant: Tenant, *, raw: bool = False) -> TenantReport:
    """Account for every offset of the tenant's topic below its settled position.

    Args:
        raw: read the whole raw zone, and look every duplicate up in it to check that its original landed;
            otherwise `RAW_PARTS`, and duplicates of retried batches with dead letters, where it may not have.

    Raises:
        Transient, OSError: the object store does not answer.
    """
    for _ in range(LOOKS):
        report = TenantReport(tenant.slug)
        with TemporaryDirectory(prefix="pulse-reconcile-") as folder:
            recorded = accounts.read(tenant, Path(folder), raw=raw)
            tables = _read_tables(report, tenant, recorded)
        damaged = any(problem.kind == "unreadable" for problem in report.problems)
        if not damaged or accounts.locations(tenant) == [table.location for table in recorded.tables]:
            break  # an erasure may have deleted files that the tables dropped meanwhile
    by_partition = _sort_out(recorded, (rows for _, rows in tables))
    _balance(report, recorded, by_partition)
    missing = sum(problem.count for problem in report.problems if problem.kind == "missing")
    for table, rows in tables:
        report.problems.extend(_unclaimed(table, rows, by_partition))
        report.problems.extend(_idle(table, rows, missing, retired=recorded.retired))
        report.problems.extend(_wrong_filters(table))
    for part in raw_parts.find_damaged(tenant.tenant_id, None if raw else RAW_PARTS):
        where = f"dataset {part.slug}, {part.day}, raw object {part.path}: {part.why}"
        report.problems.append(Problem("raw", where, part.events))
    return report


def _read_tables(report: TenantReport, tenant: Tenant, recorded: Accounts) -> list[tuple[Table, Rows]]:
    """Read all readable tables; problems within a table are added to the report."""
    duplicates = raw_duplicates.read(recorded.duplicates)
    report.problems.extend(Problem("unreadable", why, 1) for why in duplicates.unreadable)
    tables: list[tuple[Table, Rows]] = []
    lost_events: dict[str, pa.Table] = {}
    for table in recorded.tables:
        unmatched = lost_events.get(table.slug, duplicates.events.get(table.slug))
        try:
            readable.check_table(table.location)
            rows = claimed_rows.compare(table.location, table.claims, recorded.claims_from, unmatched)
        except Exception as error:  # a failure of one table must not keep the rest from being accounted for
            outages.check()
            report.problems.append(Problem("unreadable", f"{table.name}: {error}", 1))
            lost_events[table.slug] = EVENTS.empty_table()  # unknown content
            continue
        tables.append((table, rows))
        lost_events[table.slug] = rows.lost
        count, example = rows.doubled
        if count and not table.of_entities:
            where = f"{table.name}: event ids in more than one row, such as {example!r}"
            report.problems.append(Problem("double_id", where, count))
    if not recorded.forgotten:
        report.problems.extend(
            problem for slug in lost_events for problem in _lost_events(tenant, slug, lost_events[slug])
        )
    return tables


def _lost_events(tenant: Tenant, slug: str, events: pa.Table) -> Iterable[Problem]:
    """Duplicates whose events have neither a row nor a claim."""
    if events.num_rows:
        ids = events.column("event_id")
        refused = accounts.refused(tenant, slug, ids.unique().to_pylist())
        events = events.filter(pc.invert(pc.is_in(ids, pa.array(refused, pa.string()))))
    for partition, offsets in _by_partition(events):
        where = f"dataset {slug}, partition {partition}: duplicates of events that have no row"
        yield _problem("lost", where, offsets)


def _sort_out(recorded: Accounts, tables: Iterable[Rows]) -> dict[int, _PartitionOffsets]:
    by_partition: dict[int, _PartitionOffsets] = defaultdict(_PartitionOffsets)
    for rows in tables:
        for partition, offsets in _by_partition(rows.positions):
            by_partition[partition].rows.append(offsets)
    for places in (recorded.dead_letters, recorded.erased_rows):
        for partition, parts in places.items():
            by_partition[partition].without_rows.extend(parts)
    for settled in recorded.ranges:
        by_partition[settled.partition].without_rows.extend(
            accounts.expanded((*settled.copies, *settled.absent))
        )
    return by_partition


def _balance(report: TenantReport, recorded: Accounts, by_partition: dict[int, _PartitionOffsets]) -> None:
    """Check that each offset is accounted for once, and that the ledger's sums are right."""
    ends: dict[int, int] = defaultdict(int)
    covered = copied = 0
    for part in recorded.ranges:
        if part.start != ends[part.partition]:
            where = f"partition {part.partition}: a settled range begins at {part.start}"
            report.problems.append(Problem("gap", where, part.start - ends[part.partition]))
        ends[part.partition] = part.end
        report.drained += part.drained
        report.landed += part.landed
        report.duplicates += part.duplicates
        report.dead_letters += part.dead_letters
        covered += part.end - part.start - accounts.length(part.absent)
        copied += accounts.length(part.copies)
    for partition in sorted({*recorded.settled, *ends, *by_partition}):
        settled = recorded.settled.get(partition, 0)
        if ends[partition] != settled:
            where = f"partition {partition}: the ledger ends at {ends[partition]}"
            report.problems.append(Problem("gap", where, settled - ends[partition]))
        report.problems.extend(_account(partition, settled, by_partition[partition]))
    rows = sum(len(o) for f in by_partition.values() for o in f.rows)
    rows += sum(len(o) for parts in recorded.erased_rows.values() for o in parts)  # erased rows had landed
    dead_letters = sum(len(o) for parts in recorded.dead_letters.values() for o in parts)
    for kind, counted, ledger in (
        ("drained", covered, report.drained),
        ("rows", rows, report.landed),
        ("duplicates", copied, report.duplicates),
        ("dead letters", dead_letters, report.dead_letters),
        ("sum", report.landed + report.duplicates + report.dead_letters, report.drained),
    ):
        if counted != ledger:
            report.problems.append(Problem("count", f"{kind}: ledger {ledger}", counted - ledger))


def _account(partition: int, settled: int, account: _PartitionOffsets) -> Iterable[Problem]:
    everything = [*account.rows, *account.without_rows]
    offsets = np.concatenate(everything) if everything else np.empty(0, np.int64)
    inside = (offsets >= 0) & (offsets < settled)
    occurrences = np.bincount(offsets[inside], minlength=settled)
    account.once = occurrences == 1
    for kind, odd in (
        ("missing", np.flatnonzero(occurrences == 0)),
        ("double", np.flatnonzero(occurrences > 1)),
        ("unaccounted", offsets[~inside]),
    ):
        if len(odd):
            yield _problem(kind, f"partition {partition}", odd)


def _unclaimed(table: Table, rows: Rows, by_partition: Mapping[int, _PartitionOffsets]) -> Iterable[Problem]:
    """Rows without a claim, among offsets that are accounted for."""
    for partition, offsets in _by_partition(rows.unclaimed):
        odd = _accounted(offsets, by_partition[partition].once)
        if len(odd):
            where = f"{table.name}, partition {partition}: rows whose id is not claimed"
            yield _problem("unclaimed", where, odd)


def _idle(table: Table, rows: Rows, missing: int, *, retired: bool) -> Iterable[Problem]:
    """Claims without a row, beyond those of events already reported as missing.

    Claims of erased rows remain until retention removes them.
    """
    if table.claims is None:
        return
    odd = rows.idle - table.claims.erased
    if odd > missing:
        yield Problem("idle_claim", f"{table.name}: claims without a row", odd - missing)
    if odd < 0 and not retired:
        yield Problem("unclaimed", f"{table.name}: erased rows whose id is not claimed", -odd)


def _wrong_filters(table: Table) -> Iterable[Problem]:
    if table.claims and (wrong := table.claims.wrong_filters):
        numbers = ", ".join(map(str, wrong[:SHOWN]))
        yield Problem("wrong_filter", f"{table.name}: filters of the runs of claims {numbers}", len(wrong))


def _accounted(offsets: Offsets, once: npt.NDArray[np.bool_]) -> Offsets:
    """Settled offsets accounted for exactly once; the others are reported already."""
    offsets = offsets[(offsets >= 0) & (offsets < len(once))]
    return offsets[once[offsets]]


def _by_partition(positions: pa.Table) -> Iterable[tuple[int, Offsets]]:
    partitions = positions.column("partition").to_numpy()
    offsets = positions.column("event_offset").to_numpy()
    for partition in np.unique(partitions):
        yield int(partition), offsets[partitions == partition]


def _problem(kind: str, where: str, offsets: Offsets) -> Problem:
    return Problem(kind, where, len(offsets), tuple(int(offset) for offset in offsets[:SHOWN]))
