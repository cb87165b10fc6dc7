"""Reconcile: prove, from the tables, the dead letters and the ledger, that every event is there once.

Per tenant: drained = landed + duplicates + dead-lettered, and every (partition, offset) below the
settled position is exactly one of a row, a dead letter, a recorded duplicate, an erased row, or an offset
that holds no message. What is missing or double is named.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import duck
from pulse_resources import postgres
from pulse_resources.errors import Terminal

SHOWN = 10
"""Offsets named per problem; its count is always exact."""

RANGES = """
SELECT partition, start_offset, end_offset, drained, landed, duplicates, dead_letters,
    duplicate_offsets, absent_offsets
FROM ingest_ranges WHERE settled_at IS NOT NULL ORDER BY partition, start_offset
"""
POSITIONS = "SELECT partition, settled_offset FROM ingest_positions ORDER BY partition"
# Those that a backfill landed are rows.
DEAD_LETTERS = """
SELECT partition, array_agg(event_offset) FROM dead_letters
WHERE resolution IS DISTINCT FROM 'landed' GROUP BY partition
"""
ERASED = "SELECT partition, offsets FROM erased_offsets"
# The rows of a rollup's table, <slug>__<rollup>, are no events.
TABLES = """
SELECT table_name, metadata_location FROM iceberg_catalog.iceberg_tables t
WHERE table_namespace = %s AND (strpos(table_name, '__') = 0
    OR EXISTS (SELECT FROM pdm_datasets d WHERE d.slug = t.table_name))
ORDER BY table_name
"""
# What landed in a dataset stays in its files when it is deleted.
DELETED = """
SELECT slug || ', deleted', metadata_location FROM deleted_datasets
WHERE metadata_location IS NOT NULL ORDER BY slug, deleted_at
"""

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """Something that does not add up, precisely."""

    kind: str
    """gap, missing, double, unaccounted, double_id, count or unreadable."""
    where: str
    count: int
    offsets: tuple[int, ...] = ()


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
class _Found:
    """Offsets of one partition, by what the event became."""

    rows: list[Offsets] = field(default_factory=list)
    others: list[Offsets] = field(default_factory=list)


def reconcile(tenants: Iterable[Tenant]) -> list[TenantReport]:
    """One report per tenant; each is read in that tenant's own RLS session."""
    return [reconcile_tenant(tenant) for tenant in tenants]


def reconcile_tenant(tenant: Tenant) -> TenantReport:
    """Account for every offset of the tenant's topic below its settled position."""
    report = TenantReport(tenant.slug)
    found: dict[int, _Found] = defaultdict(_Found)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        positions = dict(connection.execute(POSITIONS).fetchall())
        ranges = connection.execute(RANGES).fetchall()
        for partition, offsets in connection.execute(DEAD_LETTERS):
            found[partition].others.append(np.array(offsets, np.int64))
        erasures = connection.execute(ERASED).fetchall()
        tables = connection.execute(TABLES, [tenant.namespace]).fetchall()
        tables += connection.execute(DELETED).fetchall()
    dead_letters = sum(len(o) for f in found.values() for o in f.others)
    for slug, location in tables:
        try:
            _read_rows(report, found, slug, location)
        except Terminal as error:
            report.problems.append(Problem("unreadable", f"dataset {slug}: {error}", 1))
    rows = sum(len(o) for f in found.values() for o in f.rows)
    for partition, offsets in erasures:  # they had landed
        rows += _length(offsets)
        found[partition].others.extend(_offsets(offsets))
    ends: dict[int, int] = defaultdict(int)
    covered = copied = 0
    for partition, start, end, drained, landed, duplicates, dead, copies, absent in ranges:
        if start != ends[partition]:
            where = f"partition {partition}: a settled range begins at {start}"
            report.problems.append(Problem("gap", where, start - ends[partition]))
        ends[partition] = end
        report.drained += drained
        report.landed += landed
        report.duplicates += duplicates
        report.dead_letters += dead
        covered += end - start - _length(absent)
        copied += _length(copies)
        found[partition].others.extend(_offsets((*copies, *absent)))
    for partition in sorted({*positions, *ends, *found}):
        settled = positions.get(partition, 0)
        if ends[partition] != settled:
            where = f"partition {partition}: the ledger ends at {ends[partition]}"
            report.problems.append(Problem("gap", where, settled - ends[partition]))
        report.problems.extend(_account(partition, settled, found[partition]))
    for kind, counted, ledger in (
        ("drained", covered, report.drained),
        ("rows", rows, report.landed),
        ("duplicates", copied, report.duplicates),
        ("dead letters", dead_letters, report.dead_letters),
        ("sum", report.landed + report.duplicates + report.dead_letters, report.drained),
    ):
        if counted != ledger:
            report.problems.append(Problem("count", f"{kind}: ledger {ledger}", counted - ledger))
    return report


def _offsets(spans: "Iterable[Range[int]]") -> Iterable[Offsets]:
    return (np.arange(span.lower or 0, span.upper or 0, dtype=np.int64) for span in spans)


def _length(spans: "Multirange[int]") -> int:
    return sum((span.upper or 0) - (span.lower or 0) for span in spans)


def _read_rows(report: TenantReport, found: dict[int, _Found], slug: str, location: str) -> None:
    with duck.connect() as connection:
        rows = connection.execute(
            f"SELECT _kafka_partition, _offset, id FROM {duck.SCAN}",  # noqa: S608
            [location],
        ).to_arrow_table()
        connection.register("landed", rows)
        doubled = connection.execute(
            "SELECT count(*), min(id) FROM (SELECT id FROM landed GROUP BY id HAVING count(*) > 1)"
        ).fetchone()
    if doubled and doubled[0]:
        where = f"dataset {slug}: event ids in more than one row, such as {doubled[1]!r}"
        report.problems.append(Problem("double_id", where, doubled[0]))
    partitions = rows.column("_kafka_partition").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    for partition in np.unique(partitions):
        found[int(partition)].rows.append(offsets[partitions == partition])


def _account(partition: int, settled: int, found: _Found) -> Iterable[Problem]:
    everything = [*found.rows, *found.others]
    offsets = np.concatenate(everything) if everything else np.empty(0, np.int64)
    inside = (offsets >= 0) & (offsets < settled)
    seen = np.bincount(offsets[inside], minlength=settled)
    for kind, odd in (
        ("missing", np.flatnonzero(seen == 0)),
        ("double", np.flatnonzero(seen > 1)),
        ("unaccounted", offsets[~inside]),
    ):
        if len(odd):
            shown = tuple(int(offset) for offset in odd[:SHOWN])
            yield Problem(kind, f"partition {partition}", len(odd), shown)
