"""Subjects of the table checks, and their results."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import dataset_rows
from pulse_pipelines.tables.commit import BATCH_PROPERTY
from pulse_resources import iceberg, postgres
from pulse_resources.errors import NotFound
from pulse_resources.iceberg import readable

LANDED = "SELECT coalesce(sum(rows), 0)::bigint FROM landings WHERE dataset_id = %s"
# Per partition: the end of the ledger (by the index, whatever the history), and the settled position.
ENDS = """
SELECT p.partition, p.settled_offset, coalesce((
    SELECT r.end_offset FROM ingest_ranges r
    WHERE r.tenant_id = p.tenant_id AND r.partition = p.partition AND r.settled_at IS NOT NULL
    ORDER BY r.start_offset DESC LIMIT 1), 0)
FROM ingest_positions p ORDER BY p.partition
"""


@dataclass
class CheckResult:
    """Result of a check for one tenant's dataset: numbers and problems."""

    numbers: dict[str, int | float] = field(default_factory=dict)
    """Summed over tenants, except `most_...` and `longest_...`, of which the largest counts."""
    problems: list[str] = field(default_factory=list)
    grave: bool = True
    """Whether the problems are errors rather than warnings."""


@dataclass(frozen=True)
class Scope:
    """How much of each table is checked."""

    batch_id: str | None = None
    """Only files added by this batch; None: all."""
    max_files: int | None = None
    """Maximum number of files whose rows are read: half of them the newest, half any others; None: all."""

    def sample(self, files: Sequence[DataFile]) -> Sequence[DataFile]:
        if self.max_files is None or len(files) <= self.max_files:
            return files
        newest = self.max_files // 2
        return [*files[:newest], *random.sample(files[newest:], self.max_files - newest)]


@dataclass(frozen=True)
class Subject:
    """A dataset to check: its table and its ledger, read at the same moment."""

    tenant: Tenant
    dataset: Dataset
    table: Table
    scope: Scope
    landed: int
    """Rows of the table according to the ledger."""
    ends: Sequence[tuple[int, int, int]]
    """Partition of the tenant's topic, its settled position, and the end of the ledger's ranges."""

    @cached_property
    def manifests(self) -> Sequence[ManifestFile]:
        """Manifests of the current snapshot, newest first."""
        snapshot = self.table.current_snapshot()
        return snapshot.manifests(self.table.io) if snapshot else ()

    @cached_property
    def files(self) -> Sequence[DataFile]:
        """Data files of the current snapshot that are in scope, newest first."""
        batch = self.scope.batch_id
        sequence_numbers = {
            s.snapshot_id: s.sequence_number or 0
            for s in self.table.snapshots()
            if batch and s.summary and s.summary.additional_properties.get(BATCH_PROPERTY) == batch
        }
        return [
            entry.data_file
            for manifest in self.manifests
            if manifest.content is ManifestContent.DATA
            and (batch is None or any(_may_have(manifest, *numbers) for numbers in sequence_numbers.items()))
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
            if batch is None or entry.snapshot_id in sequence_numbers
        ]


def _may_have(manifest: ManifestFile, snapshot_id: int, number: int) -> bool:
    """Whether a manifest may have files that a snapshot added: its own, or one that it was merged into."""
    if manifest.added_snapshot_id == snapshot_id:
        return manifest.has_added_files()
    least, merged = manifest.min_sequence_number or 0, manifest.has_existing_files()
    return merged and least <= number < (manifest.sequence_number or 0)


class _DatasetRecords(NamedTuple):
    """A dataset's records in Postgres at one moment."""

    dataset: Dataset
    location: str
    landed: int
    ends: Sequence[tuple[int, int, int]]


def load(tenant: Tenant, slug: str, scope: Scope) -> Subject:
    """Load a dataset for the checks, in the tenant's RLS session.

    Raises:
        Terminal: the dataset's table or its metadata is gone.
        NotFound: the tenant has no such dataset.
    """

    def subject(records: _DatasetRecords) -> Subject:
        table = iceberg.load_table((tenant.namespace, slug), records.location)
        return Subject(tenant, records.dataset, table, scope, records.landed, records.ends)

    read = partial(_read_records, tenant, slug)
    return readable.as_it_is(subject, read(), read, lambda records: records.location)


def _read_records(tenant: Tenant, slug: str) -> _DatasetRecords:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        dataset = next(dataset_rows.read(connection, "d.slug = %s", [slug]), None)
        if dataset is None:
            raise NotFound("no such dataset", tenant=tenant.slug, dataset=slug)
        location = iceberg.current_location(connection, (tenant.namespace, slug))
        ((landed,),) = connection.execute(LANDED, [dataset.dataset_id]).fetchall()
        return _DatasetRecords(dataset, location, landed, connection.execute(ENDS).fetchall())
