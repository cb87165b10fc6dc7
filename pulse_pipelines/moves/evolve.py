"""Moves of a dataset to a newer version of its schema: its row and its table change in one transaction.

Slow work happens before it: comparing schemas, rewriting data files with a replaced column, and staging the
table's next metadata. Then one transaction locks the row, swaps the table's pointer and updates the row. A
batch that settles in between wins the swap; then only the files that it added are rewritten.

A request (`ask`) makes moves that rewrite no data file at once, and records all others for a run
(see `pulse_pipelines.moves`), which has a rewriter (`carry_out`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from pulse_pipelines.domain import entities
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.compatibility import incompatibilities
from pulse_pipelines.domain.schemas.schema import SchemaUri, check_document
from pulse_pipelines.domain.table_columns import fitted
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import indexes
from pulse_pipelines.moves import record
from pulse_pipelines.moves.record import Move
from pulse_pipelines.registry.datasets import INSERT_VERSION, find_dataset
from pulse_pipelines.registry.schema_bytes import check_schema_bytes
from pulse_pipelines.registry.schemas import PublishedSchema, find_schema
from pulse_pipelines.registry.table_lookup import CurrentTable, current_table
from pulse_pipelines.states import declared_states
from pulse_pipelines.tables import dataset_rows, leases, rewrite_file
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.iceberg_schema import Evolved, evolve
from pulse_pipelines.tables.rewrite_file import Rewrite, Rewriter
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Conflict, FileGone, Incompatible, NotFound, Terminal, Transient
from pulse_resources.iceberg import readable
from pulse_resources.process.faults import fail_point

LOCK = """
SELECT schema_uri, table_schema FROM pdm_datasets WHERE dataset_id = %s FOR UPDATE
"""
MOVE = "UPDATE pdm_datasets SET schema_uri = %s, table_schema = %s WHERE dataset_id = %s"
AT_A_TIME = 4
"""Footers of data files that are read concurrently."""


class FilesToRewrite(Exception):  # noqa: N818 - no error: it is more than a request does
    """The move replaces columns that data files have: it takes a run to rewrite them.

    Args:
        dataset: as it is, unchanged.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        self.dataset = dataset


@dataclass(frozen=True)
class _Step(Work):
    """The staged move of a dataset; without a table if the table's schema does not change."""

    dataset: Dataset
    """The dataset before the move."""
    schema: PublishedSchema
    table_schema: str


def ask(tenant: Tenant, slug: str, schema_uri: str) -> Dataset | Move:
    """Move a dataset to a newer, compatible version of its schema, or record the move for a run.

    Returns:
        The dataset, if it now follows the version. A move, if a run has to rewrite data files; until then
        the dataset is unchanged.

    Raises:
        Conflict: the dataset already has an open move, or the version is earlier, or of another schema.
        UserError, Terminal, Transient: as `carry_out`; nothing was changed.
    """
    record.none_under_way(tenant, find_dataset(tenant, slug))
    try:
        return move_dataset(tenant, slug, schema_uri)
    except FilesToRewrite as rewrite:
        fail_point("move.asked")
        return record.plan(tenant, rewrite.dataset, schema_uri)


def move_dataset(tenant: Tenant, slug: str, schema_uri: str) -> Dataset:
    """Move a dataset to a newer, compatible version of its schema; a no-op if it follows it already.

    Events may name the version that they follow, including earlier ones of the dataset.

    Raises:
        FilesToRewrite: data files would have to be rewritten; nothing was changed.
        NotFound: the tenant has no such dataset; and what `carry_out` raises.
    """
    return carry_out(tenant, slug, find_dataset(tenant, slug).dataset_id, schema_uri)


def carry_out(
    tenant: Tenant,
    slug: str,
    dataset_id: UUID,
    schema_uri: str,
    *,
    rewriter: Rewriter | None = None,
    write: Callable[[postgres.Connection], None] = lambda connection: None,
) -> Dataset:
    """Move a dataset to a newer, compatible version of its schema, and rewrite data files if need be.

    Args:
        rewriter: of data files; None: `FilesToRewrite` is raised if there are files to rewrite.
        write: writes rows in the transaction that moves the dataset.

    Raises:
        UserError: `schema_uri` is not a schema address.
        NotFound: the dataset is gone, or the tenant has not published this schema.
        Conflict: it is another schema, or an earlier version; or an index of the dataset is by a property
            whose column becomes another type.
        Incompatible: events or rows of the version that it follows would not fit; lists the changes.
        Terminal: the table, or a file of it, is gone or damaged.
        Transient: the object store failed, or other writers kept committing first; nothing was changed.
    """
    with leases.moving(dataset_id):
        return _Move(tenant, slug, dataset_id, schema_uri, _Files(rewriter), write).carry_out()


class _Files:
    """Rewritten data files of a move, remembered by target table schema and path of the original.

    Args:
        rewriter: None: files that need a rewrite raise `FilesToRewrite`.
    """

    def __init__(self, rewriter: Rewriter | None) -> None:
        self._rewriter = rewriter
        self._again: dict[tuple[str, str], DataFile | None] = {}
        """None for files that need no rewrite."""

    def replaced(self, dataset: Dataset, table: Table, evolved: Evolved) -> list[tuple[DataFile, DataFile]]:
        """The table's current files with a replaced column, each with its rewritten file."""
        table_schema, tasks = evolved.schema.model_dump_json(), list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise Terminal("the table has delete files: compact it first", table=".".join(table.name()))
        files = {task.file.file_path: task.file for task in tasks}
        if files and self._rewriter is None:
            raise FilesToRewrite(dataset)
        fresh = [path for path in files if (table_schema, path) not in self._again]
        with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="move") as pool:
            field_ids = pool.map(lambda path: rewrite_file.field_ids(path), fresh)
        stale = [
            Rewrite(path, files[path].file_size_in_bytes, table_schema)
            for path, ids in zip(fresh, field_ids, strict=True)
            if rewrite_file.stale(ids, evolved.schema)
        ]
        written = self._rewriter(stale) if self._rewriter else {}
        for path in fresh:
            again = written[path].instead_of(files[path]) if path in written else None
            self._again[table_schema, path] = again
        pairs = ((file, self._again[table_schema, path]) for path, file in files.items())
        return [(before, after) for before, after in pairs if after is not None]


@dataclass
class _Move(Change[_Step]):
    """The move of a dataset to another version of its schema."""

    slug: str
    dataset_id: UUID
    schema_uri: str
    files: _Files
    write_more: Callable[[postgres.Connection], None]
    point = "move"
    role = "pulse_api"

    def stage(self, lost: SwapLost | None) -> _Step | None:
        def load() -> CurrentTable:
            return current_table(self.tenant, self.slug)

        return readable.as_it_is(
            partial(_step, self.tenant, self.dataset_id, self.schema_uri, self.files),
            load(),
            load,
            lambda current: current.metadata_location,
        )

    def lock(self, connection: postgres.Connection, work: _Step) -> None:
        dataset = work.dataset
        row = connection.execute(LOCK, [dataset.dataset_id]).fetchone()
        if row is None:
            raise NotFound("no such dataset", tenant=self.tenant.slug, dataset=dataset.slug)
        if row != (dataset.schema_uri, dataset.table_schema):
            raise SwapLost

    def write(self, connection: postgres.Connection, work: _Step) -> None:
        dataset_id, schema = work.dataset.dataset_id, work.schema
        connection.execute(MOVE, [schema.schema_uri, work.table_schema, dataset_id])
        for moved in dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id]):
            # A state may have been declared since the move was staged.
            declared_states.check(connection, self.tenant, work.dataset, moved.columns)
        version = [self.tenant.tenant_id, dataset_id, schema.version, schema.schema_uri]
        connection.execute(INSERT_VERSION, version)
        check_schema_bytes(connection, self.tenant)
        self.write_more(connection)

    def was_committed(self, work: _Step) -> bool:
        return find_dataset(self.tenant, self.slug).schema_uri == self.schema_uri

    def carry_out(self) -> Dataset:
        """Commit the move; returns the moved dataset. Raises as `carry_out`."""
        where = {"tenant": self.tenant.slug, "dataset": self.slug}
        try:
            commit(self)
        except (FileGone, FileNotFoundError) as error:
            raise FileGone(f"a file of the table is gone: {error}", **where) from error
        except pa.ArrowInvalid as error:
            raise Terminal(f"a file of the table is damaged: {error}", **where) from error
        except OSError as error:
            raise Transient(
                f"the object store did not take the table: {error}",
                fix="Nothing was changed: try again",
                **where,
            ) from error
        return find_dataset(self.tenant, self.slug)


def _step(
    tenant: Tenant, dataset_id: UUID, schema_uri: str, files: _Files, current: CurrentTable
) -> _Step | None:
    """Stage the move from the dataset's current version; None when it follows `schema_uri` already."""
    dataset = current.dataset
    if dataset.dataset_id != dataset_id:
        raise NotFound(
            "the dataset was deleted, and another one has its slug",
            fix="Repeat the move if the new dataset is meant",
            tenant=tenant.slug,
            dataset=dataset.slug,
        )
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        schema = find_schema(connection, tenant, schema_uri)
    if dataset.schema_uri == schema.schema_uri:
        return None
    _check(tenant, dataset, schema)
    return _stage(tenant, current, schema, files)


def _check(tenant: Tenant, dataset: Dataset, schema: PublishedSchema) -> None:
    follows, target = SchemaUri.parse(dataset.schema_uri), SchemaUri.parse(schema.schema_uri)
    where = {"tenant": tenant.slug, "dataset": dataset.slug}
    if target.name != follows.name:
        raise Conflict(f"the dataset follows the schema {follows.name!r}, not {target.name!r}", **where)
    if target.version < follows.version:
        raise Conflict(f"the dataset follows version {follows.version} already", **where)
    problems = incompatibilities(check_document(dataset.document), check_document(schema.document))
    if problems:
        first, more = problems[0], len(problems) - 1
        raise Incompatible(
            f"version {target.version} is not compatible with version {follows.version}: at "
            f"{first.pointer or 'the top'}, {first.change}: {first.reason}"
            + (f", and {more} more" if more else ""),
            fix="Publish a compatible version, or create another dataset",
            incompatibilities=problems,
            **where,
        )


def _stage(tenant: Tenant, current: CurrentTable, schema: PublishedSchema, files: _Files) -> _Step:
    dataset, name = current.dataset, (tenant.namespace, current.dataset.slug)
    table = iceberg.load_table(name, current.metadata_location)
    if table.properties.get(iceberg.DATASET_PROPERTY) != str(dataset.dataset_id):
        raise Terminal("the table is not this dataset's", tenant=tenant.slug, dataset=dataset.slug)
    document = check_document(schema.document)
    if dataset.of_entities:
        entities.check_schema(document)
    declared = fitted(columns(document), document, dataset.table_schema, grow=True)
    if dataset.of_entities:
        indexes.check(tenant, dataset, declared)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        declared_states.check(connection, tenant, dataset, declared)
    evolved = evolve(table.schema(), declared, table.metadata.last_column_id)
    if evolved.schema.fields == table.schema().fields:
        return _Step([], dataset, schema, dataset.table_schema)
    pairs = files.replaced(dataset, table, evolved) if evolved.replaced else []
    fail_point("move.rewritten")
    summary = {"pulse.schema-uri": schema.schema_uri}
    if evolved.replaced:
        summary["pulse.replaced-columns"] = ",".join(sorted(evolved.replaced))
    location, written = iceberg.stage_schema(table, evolved.schema, pairs, summary)
    following = Next(name, current.metadata_location, location)
    return _Step([following], dataset, schema, written.model_dump_json())
