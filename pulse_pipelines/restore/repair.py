"""Repair after a restore: what Postgres or the object store has lost, from Kafka and the other one.

Raw objects that are gone are written again from Kafka. A table whose metadata is gone is pointed at the
newest that is there, or at metadata without rows. Then the days whose rows are not those of the ledger are
rebuilt from the raw zone. A table of a tenant's own is pointed at the newest metadata that follows its own.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import orjson
import psycopg
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.backfill.run import backfill
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import catalog
from pulse_pipelines.lake.catalog import ROLE, OwnTable
from pulse_pipelines.maintenance import retention
from pulse_pipelines.registry.datasets import list_datasets
from pulse_pipelines.restore import lost_raw, raw_refill, table_files, tenant_tables
from pulse_pipelines.restore.lost_raw import LostBatch
from pulse_pipelines.restore.table_files import TableFiles
from pulse_pipelines.tables import leases, live_table, store_mark
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.file_metrics import day_of
from pulse_pipelines.tables.live_table import current_location
from pulse_resources import iceberg
from pulse_resources.errors import Conflict, PulseError, first_line, some_of
from pulse_resources.iceberg import table_metadata

REPAIRED = "pulse.repaired"
"""Snapshot property of a commit that removed rows of days which are rebuilt next."""
WAIT_S = 600.0
"""Seconds that a repair waits for another rewrite of a table to end."""
_ERRORS = (PulseError, OSError, psycopg.Error, PySparkException)


@dataclass(frozen=True)
class Repaired:
    """A step of a repair, and its outcome."""

    tenant: str
    subject: str
    """`raw zone`, a dataset's slug, or the name of a table of the tenant's own."""
    day: date | None
    done: str
    failed: str | None = None


def repair(spark: SparkSession, tenant: Tenant, *, parallelism: int) -> Iterator[Repaired]:
    """Repair what can be repaired of a tenant; yields each step when it ends. A repeated call continues.

    A step that fails changes nothing, and the others continue.

    Args:
        parallelism: Spark tasks per day that is rebuilt.

    Raises:
        OSError, psycopg.OperationalError: a service failed before the first step.
    """
    objects = lost_raw.list_objects(tenant)
    if returned := lost_raw.find_returned(tenant, objects):
        lost_raw.delete_again(tenant, returned)
        retention.delete_removed(tenant)
        done = f"objects that had been deleted, and were there again, deleted: {len(returned):,}"
        yield Repaired(tenant.slug, "raw zone", None, done)
    yield from _refill(spark, tenant, lost_raw.find_lost(tenant, objects))
    lost = lost_raw.find_lost(tenant, lost_raw.list_objects(tenant))
    for dataset in list_datasets(tenant):
        hopeless = lost_raw.batches_of(lost, dataset.slug)
        yield from _repair_dataset(spark, tenant, dataset, parallelism, hopeless)
    for table in tenant_tables.find_behind(tenant) if store_mark.compare() else ():
        yield _forward(tenant, table)


def _refill(spark: SparkSession, tenant: Tenant, lost: Sequence[LostBatch]) -> Iterator[Repaired]:
    for batch in (batch for batch in lost if batch.in_kafka):
        try:
            lines = raw_refill.refill(spark, tenant, batch)
        except _ERRORS as error:
            yield Repaired(tenant.slug, "raw zone", None, f"batch {batch.batch_id}", first_line(error))
            continue
        done = f"{lines:,} events of batch {batch.batch_id} written again from Kafka"
        yield Repaired(tenant.slug, "raw zone", None, done)


def _repair_dataset(
    spark: SparkSession,
    tenant: Tenant,
    dataset: Dataset,
    parallelism: int,
    hopeless: Mapping[date, Sequence[str]],
) -> Iterator[Repaired]:
    """Repair a dataset's table.

    Args:
        hopeless: days that the raw zone cannot give, with the batches whose raw objects are gone; they stay
            as they are.
    """
    try:
        files = table_files.compare(tenant, dataset)
        days = files.days
        if dataset.of_entities and days:
            return  # what its readers hold are places in this log
        if files.base is None and not hopeless.keys().isdisjoint(days):
            why = "no metadata with its columns is there, and not all of its days can be rebuilt"
            yield Repaired(tenant.slug, dataset.slug, None, "the table's metadata", why)
            return
        if not files.is_current:
            with leases.rewriting(dataset.dataset_id, wait_seconds=WAIT_S):
                commit(_Repoint(tenant, files, files.doubtful - hopeless.keys()))
            yield Repaired(tenant.slug, dataset.slug, None, "pointed at metadata that is there")
    except _ERRORS as error:
        yield Repaired(tenant.slug, dataset.slug, None, "the table's metadata", first_line(error))
        return
    for day in days:
        if day in hopeless:
            why = (
                f"raw objects of batch {some_of(hopeless[day])} are gone: put them back from a backup, then "
                "call it again"
            )
            yield Repaired(tenant.slug, dataset.slug, day, "rebuilt", why)
            continue
        try:
            rebuilt = backfill(spark, tenant, dataset.slug, day, parallelism=parallelism)
        except _ERRORS as error:
            yield Repaired(tenant.slug, dataset.slug, day, "rebuilt", first_line(error))
            continue
        yield Repaired(tenant.slug, dataset.slug, day, f"{rebuilt.rows:,} rows rebuilt from the raw zone")
    done = "earlier snapshots removed, because files of theirs are gone"
    try:
        files = table_files.compare(tenant, dataset)
        if files.is_current and files.unreadable and not files.days:
            with leases.rewriting(dataset.dataset_id, wait_seconds=WAIT_S):
                commit(_Forget(tenant, files))
            yield Repaired(tenant.slug, dataset.slug, None, f"{done}: {len(files.unreadable):,}")
    except _ERRORS as error:
        yield Repaired(tenant.slug, dataset.slug, None, done, first_line(error))


@dataclass
class _OfTable(Change[Work]):
    """A change of a dataset's table that no one else may change meanwhile."""

    files: TableFiles

    def stage(self, lost: SwapLost | None) -> Work | None:
        name = self.files.name
        if lost is not None or current_location(self.tenant.tenant_id, name) != self.files.pointer:
            raise Conflict(
                "the table has changed meanwhile",
                fix="Nothing was changed: try again",
                tenant=self.tenant.slug,
                dataset=self.files.dataset.slug,
            )
        return Work([Next(name, self.files.pointer, self.following())])

    @abstractmethod
    def following(self) -> str:
        """Write the table's next metadata; returns its location."""

    def was_committed(self, work: Work) -> bool:
        table = work.tables[0]
        return current_location(self.tenant.tenant_id, table.table) == table.new


@dataclass
class _Repoint(_OfTable):
    """Points a table at its base, without the rows of some days.

    These have the right number of rows, perhaps other ones: without them the days count as lacking rows
    until they are rebuilt, even if this process dies before.
    """

    without: frozenset[date]
    point = "restore.repoint"

    def following(self) -> str:
        base = self.files.base
        if base is None:
            return _write_empty(self.tenant, self.files.dataset)
        written = table_metadata.write_next(base.document, self.files.pointer, with_log=False)
        removed = [file for file in base.files.values() if day_of(file) in self.without]
        if not removed:
            return written
        table = iceberg.load_table(self.files.name, written)
        return iceberg.stage_replace(table, removed, [], {REPAIRED: "true"}).new


@dataclass
class _Forget(_OfTable):
    """Removes the snapshots that cannot be read."""

    point = "restore.forget"

    def following(self) -> str:
        base = self.files.base
        assert base is not None  # noqa: S101 - it is current
        document = table_metadata.without_snapshots(base.document, base.unreadable)
        return table_metadata.write_next(document, self.files.pointer, with_log=False)


def _write_empty(tenant: Tenant, dataset: Dataset) -> str:
    """Write metadata of the dataset's table without rows, with its field ids; returns its location."""
    schema = Schema.model_validate_json(dataset.table_schema)
    location, renumbered = live_table.write_first(
        tenant, dataset.slug, dataset.dataset_id, schema, dataset.kind
    )
    document = table_metadata.read(location)
    numbered = orjson.loads(dataset.table_schema) | {"schema-id": renumbered.schema_id}
    document |= {"schemas": [numbered], "last-column-id": schema.highest_field_id}
    return table_metadata.write_next(document, location, with_log=False)


def _forward(tenant: Tenant, behind: tenant_tables.Behind) -> Repaired:
    subject, done = behind.table.shown, f"pointed at {behind.newest.rpartition('/')[2]}"
    try:
        commit(_Forward(tenant, behind.table, behind.newest))
    except _ERRORS as error:
        return Repaired(tenant.slug, subject, None, done, first_line(error))
    return Repaired(tenant.slug, subject, None, done)


@dataclass
class _Forward(Change[Work]):
    """Points a table of the tenant's own at metadata that follows the catalog's."""

    table: OwnTable
    newest: str
    point = "restore.forward"
    role = ROLE

    def stage(self, lost: SwapLost | None) -> Work | None:
        if lost is not None:
            raise Conflict(
                "an engine committed to the table meanwhile",
                fix="Nothing was changed: `pulse restore check` compares it again",
                tenant=self.tenant.slug,
                table=self.table.shown,
            )
        return Work([Next(self.table.row, self.table.at, self.newest)])

    def was_committed(self, work: Work) -> bool:
        return catalog.find(self.tenant, self.table.namespace, self.table.name) != self.table.at
