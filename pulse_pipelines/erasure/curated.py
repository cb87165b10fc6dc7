"""Curated tables and summaries: all rows of days computed from erased events are removed, with the history.

Pulse cannot tell which curated rows derive from the person, since a team's rollup may group by anything. So
all rows of these days are removed; the erasure's own landing makes the days due, and they are computed again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.curated.table import SOURCE_PROPERTY
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record, rows
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.tables import file_metrics, live_table
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.reachable_files import ReachableFiles
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.iceberg import TableName, table_metadata
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

STEP = "curated"
SUMMARIES = "summaries"
"""Key in the record: summaries that were served again after the rows step had deleted them."""

TABLES = """
SELECT table_name, metadata_location FROM iceberg_catalog.iceberg_tables
WHERE table_namespace = %s AND starts_with(table_name, %s) ORDER BY table_name
"""
# Days that were recomputed since the erasure.
COMPUTED = """
SELECT s.day FROM summaries s JOIN landings l USING (tenant_id, dataset_id, day)
WHERE s.dataset_id = %s AND s.rollup = %s AND l.batch_id = %s AND s.landed_at >= l.landed_at
  AND s.error IS NULL
"""
# Summaries of a day that the erasure changed, computed before the erasure.
STALE = """
l.batch_id = %s AND l.tenant_id = %s AND s.landed_at < l.landed_at
AND (s.tenant_id, s.dataset_id, s.day) = (l.tenant_id, l.dataset_id, l.day)
"""
FIND_STALE = f"SELECT s.rollup, s.day FROM summaries s, landings l WHERE {STALE} ORDER BY 1, 2"  # noqa: S608
DELETE_STALE = f"DELETE FROM summaries s USING landings l WHERE {STALE}"  # noqa: S608


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Remove the erased days from every curated table of the dataset, and delete the files that held them.

    Raises:
        Transient, OSError, psycopg.OperationalError: run it again.
    """
    entries = {entry["table"]: entry for entry in erasure.steps.get(STEP, ())}
    for name in tables(tenant, subject) if days_of(erasure) else ():
        files, deleted = _erase(tenant, subject, erasure, name)
        before = entries.get(name[1], {"files_removed": 0, "objects_deleted": 0})
        entries[name[1]] = {
            "table": name[1],
            "files_removed": before["files_removed"] + files,
            "objects_deleted": before["objects_deleted"] + deleted,
        }
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        locks.wait(connection, Lock.SUMMARIES, subject.dataset.dataset_id)
        stale = connection.execute(DELETE_STALE, [erasure.erasure_id, tenant.tenant_id]).rowcount
        again = erasure.steps.get(SUMMARIES, 0) + stale
        record.done(connection, tenant, erasure.erasure_id, SUMMARIES, again)
        record.done(connection, tenant, erasure.erasure_id, STEP, list(entries.values()))


def stale_summaries(tenant: Tenant, erasure: Erasure) -> list[tuple[str, date]]:
    """Rollup and day of each served summary that was computed before the erasure."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(FIND_STALE, [erasure.erasure_id, tenant.tenant_id]).fetchall()


def days_of(erasure: Erasure) -> frozenset[date]:
    """Days from which rows were erased."""
    return frozenset(map(date.fromisoformat, erasure.steps[rows.STEP]["days"]))


def tables(tenant: Tenant, subject: Subject) -> Iterator[TableName]:
    """The curated tables of the subject's dataset."""
    dataset = subject.dataset
    prefix = tenant.curated_table(dataset.slug, "")[1]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        candidates = connection.execute(TABLES, [tenant.namespace, prefix]).fetchall()
    for name, location in candidates:
        table = iceberg.load_table((tenant.namespace, name), location)
        if table.properties.get(SOURCE_PROPERTY) == str(dataset.dataset_id):
            yield tenant.namespace, name


def leftovers(tenant: Tenant, subject: Subject, erasure: Erasure, name: TableName) -> list[str]:
    """Files of a curated table, live or not, that were computed from erased events.

    The folder is listed before the table is read: a day that is being recomputed may be committed in between.
    """

    def current(connection: postgres.Connection) -> Table:
        return iceberg.load_table(name, iceberg.current_location(connection, name))

    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        location = current(connection).location()
    listed = [o for day in days_of(erasure) for o in object_store.listed(f"{location}/data/day={day}/")]
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        table = current(connection)
        stale = [file.file_path for file in stale_files(connection, subject, erasure, table)]
    live = live_table.live_files(table)
    for stored in listed:
        old = erasure.finished_at is None or stored.modified <= erasure.finished_at
        if old and stored.path not in live:
            stale.append(stored.path)
    return stale


def stale_files(
    connection: postgres.Connection, subject: Subject, erasure: Erasure, table: Table
) -> list[DataFile]:
    """Live files of erased days that were not recomputed since; call it in the tenant's session."""
    dataset = subject.dataset
    rollup = table.name()[-1].removeprefix(f"{dataset.slug}__")
    values = [dataset.dataset_id, rollup, erasure.erasure_id]
    fresh = {day for (day,) in connection.execute(COMPUTED, values)}
    stale = days_of(erasure) - fresh
    return [file for file in live_table.live_files(table).values() if file_metrics.day_of(file) in stale]


@dataclass(frozen=True)
class _Cleaned(Work):
    stale: list[DataFile]
    listed: list[object_store.Object]


@dataclass
class _CuratedErasure(Change[_Cleaned]):
    """Removes the stale files of a curated table, and its history."""

    subject: Subject
    erasure: Erasure
    table: TableName
    point = "erase.curated"

    def stage(self, lost: SwapLost | None) -> _Cleaned:
        following = location = live_table.current_location(self.tenant.tenant_id, self.table)
        table = iceberg.load_table(self.table, location)
        listed = [o for o in object_store.listed(table.location()) if not o.name.endswith(".metadata.json")]
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            stale = stale_files(connection, self.subject, self.erasure, table)
        if stale:
            summary = {rows.ERASURE_PROPERTY: self.erasure.erasure_id}
            following = iceberg.stage_replace(table, stale, [], summary).new
        if live := iceberg.stage_live_only(iceberg.load_table(self.table, following)):
            following = live.new
        document = table_metadata.read(following)
        removed = {s["snapshot-id"] for s in document.get("snapshots", ())} - {
            document.get("current-snapshot-id")
        }
        remaining = table_metadata.without_snapshots(document, removed)
        new = table_metadata.write_next(remaining, following, with_log=False)
        return _Cleaned([Next(self.table, location, new)], stale, listed)

    def lock(self, connection: postgres.Connection, work: _Cleaned) -> None:
        locks.wait(connection, Lock.SUMMARIES, self.subject.dataset.dataset_id)

    def was_committed(self, work: _Cleaned) -> bool:
        return live_table.current_location(self.tenant.tenant_id, self.table) == work.tables[0].new


def _erase(tenant: Tenant, subject: Subject, erasure: Erasure, name: TableName) -> tuple[int, int]:
    """Remove stale files from the table; returns how many files left it and how many objects were deleted.

    The folder is listed first. A concurrent commit of rollups is staged again once the pointer has moved,
    so a listed file that is unreachable afterwards can never come back.
    """
    cleaned = commit(_CuratedErasure(tenant, subject, erasure, name))
    assert cleaned is not None  # noqa: S101 - `stage` always stages
    reached = ReachableFiles().of(iceberg.load_table(name, cleaned.tables[0].new))
    orphans = (item.path for item in cleaned.listed if item.path not in reached)
    return len(cleaned.stale), object_store.delete(orphans)
