"""Indexes of a dataset of entities: declared, listed with size and readers, dropped; and their entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.expressions import compiler
from pulse_pipelines.domain.schemas.columns import Column
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import index_entries, index_runs
from pulse_pipelines.registry.table_lookup import CurrentLog, log_of
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound, QuotaExceeded, UserError

MAX_INDEXES = 8
"""Indexes per dataset: every batch writes each of them."""
UNREAD = timedelta(days=30)
"""An index without a read for this long is orphaned."""

# Whoever declares an index of the dataset waits for the others, so that the limit holds.
HOLD = "SELECT FROM entity_logs WHERE dataset_id = %s FOR UPDATE"
# An index that a person declares stays when the joins that needed it end.
DECLARE = """
INSERT INTO entity_indexes (tenant_id, dataset_id, expression, implied) VALUES (%s, %s, %s, %s)
ON CONFLICT (dataset_id, expression) DO UPDATE SET implied = false
WHERE entity_indexes.implied AND NOT excluded.implied
"""
LIST = """
SELECT i.index_id, i.expression, i.updated, i.entries, i.updated * %s AS bytes, i.created_at,
    coalesce(array_agg(r.reader ORDER BY r.reader) FILTER (WHERE r.reader IS NOT NULL), '{}') AS readers,
    max(r.read_at) AS read_at,
    CASE WHEN i.implied AND count(r.reader) = 0 THEN true
        ELSE coalesce(max(r.read_at), i.created_at) < now() - %s
            AND NOT coalesce(bool_or(starts_with(r.reader, 'pipe ')), false) END AS orphaned,
    greatest(0, %s - i.updated) AS behind
FROM entity_indexes i LEFT JOIN entity_index_readers r USING (index_id)
WHERE i.dataset_id = %s GROUP BY i.index_id ORDER BY i.expression
"""
EXPRESSIONS = "SELECT index_id, expression FROM entity_indexes WHERE dataset_id = %s ORDER BY index_id"
FIND = "SELECT index_id, updated FROM entity_indexes WHERE dataset_id = %s AND expression = %s"
DROP = "DELETE FROM entity_indexes WHERE dataset_id = %s AND index_id = %s RETURNING expression"
# Once an hour: who reads is written down, not how often.
READ = """
INSERT INTO entity_index_readers (tenant_id, index_id, reader)
SELECT tenant_id, index_id, %s FROM entity_indexes WHERE index_id = %s FOR KEY SHARE
ON CONFLICT (index_id, reader) DO UPDATE SET read_at = now()
WHERE entity_index_readers.read_at < now() - interval '1 hour'
"""
RELEASE = "DELETE FROM entity_index_readers WHERE reader = %s"


@dataclass(frozen=True)
class DeclaredIndex:
    index_id: int
    expression: str
    updated: int
    """`_updated` of the last version that it has."""
    entries: int
    """Values in it: one of each version whose entity has one, and one where the entity had another before."""
    bytes: int
    """How much it takes in Postgres."""
    created_at: datetime
    readers: Sequence[str]
    """API keys that have read a subset by it, by id; and transforms with joins by it, as `reader_of` says."""
    read_at: datetime | None
    """When one last did, to the hour."""
    orphaned: bool
    """Nobody has read by it for `UNREAD`, or the transforms that implied it are gone: it can be dropped."""
    behind: int
    """Versions of the log that it does not have yet."""


def reader_of(pipe: str) -> str:
    """A transform as a reader of indexes."""
    return f"pipe {pipe}"


def declare(tenant: Tenant, slug: str, expression: str, *, pipe: str | None = None) -> DeclaredIndex:
    """Declare an index, to be built by `index_build`; an existing one is left unchanged.

    Args:
        pipe: the transform of which a join implies it.

    Raises:
        UserError: it is not an expression over the dataset's columns.
        NotFound: the tenant has no such dataset.
        Conflict: it is a dataset of events.
        QuotaExceeded: the dataset has as many as it may have.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        log = log_of(connection, tenant, slug)
        text = compiler.expression(expression, log.dataset.columns).text
        connection.execute(HOLD, [log.dataset.dataset_id])
        connection.execute(DECLARE, [tenant.tenant_id, log.dataset.dataset_id, text, pipe is not None])
        declared = _listed(connection, log)
        if len(declared) > MAX_INDEXES:
            raise QuotaExceeded(
                f"the dataset has {MAX_INDEXES} indexes, as many as it may have",
                fix="Drop one: the list shows which are not read",
                tenant=tenant.slug,
                dataset=slug,
            )
        index = next(candidate for candidate in declared if candidate.expression == text)
        if pipe is not None:
            connection.execute(READ, [reader_of(pipe), index.index_id])
    return index


def list_indexes(tenant: Tenant, slug: str) -> list[DeclaredIndex]:
    """A dataset's indexes by expression. Raises NotFound; Conflict: it is a dataset of events."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        return _listed(connection, log_of(connection, tenant, slug))


def drop(tenant: Tenant, slug: str, index_id: int) -> str:
    """Drop an index; returns its expression.

    Raises:
        NotFound: the tenant has no such dataset, or the dataset no such index.
        Conflict: it is a dataset of events.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        log = log_of(connection, tenant, slug)
        row = connection.execute(DROP, [log.dataset.dataset_id, index_id]).fetchone()
    if row is None:
        raise NotFound(f"the dataset has no index {index_id}", tenant=tenant.slug, dataset=slug)
    expression: str = row[0]
    return expression


def check(tenant: Tenant, dataset: Dataset, columns: Sequence[Column]) -> None:
    """Check that all indexes of a dataset fit other columns. Raises Conflict: one does not."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        rows = connection.execute(EXPRESSIONS, [dataset.dataset_id]).fetchall()
    for index_id, text in rows:
        try:
            compiler.expression(text, columns)
        except UserError as error:
            raise Conflict(
                f"the index by {text} does not fit the newer schema: {error}",
                fix=f"Drop it first (it is number {index_id}), then declare one by what fits both",
                tenant=tenant.slug,
                dataset=dataset.slug,
            ) from error


@dataclass(frozen=True)
class SubsetLog:
    """A log and the entries of a subset in its index, read at one moment."""

    log: CurrentLog
    index_id: int
    covered: int
    """`_updated` of the last version that the index has."""
    entries: Mapping[int, bool]
    """Whether the entity is in the subset, else it has left it, by `_updated`, ascending."""
    last: int
    """The place up to which these are all."""


def subset_log(
    tenant: Tenant, slug: str, text: str, after: int, limit: int, reader: str | None = None
) -> SubsetLog:
    """Read at most `limit` entries of a subset after a place in the log, or as many as a look has.

    Args:
        given: `<expression>=<value>`.
        reader: id of the API key that reads; it is remembered as a reader of the index.

    Raises:
        UserError: `given` is not valid.
        Conflict: the dataset has no such index, or is one of events.
        NotFound: the tenant has no such dataset.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        log = log_of(connection, tenant, slug)
        subset = compiler.subset(text, log.dataset.columns)
        row = connection.execute(FIND, [log.dataset.dataset_id, subset.expression.text]).fetchone()
        if row is None:
            raise Conflict(
                f"the dataset has no index by {subset.expression.text}, by which its subset is read",
                fix=f"Declare it once: POST /v1/datasets/{slug}/indexes, or pulse index create",
                tenant=tenant.slug,
                dataset=slug,
            )
        key = index_entries.digests([subset.value], log.dataset)
        entries, last = index_runs.read(connection, row[0], key, after, limit)
    if reader is not None:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(READ, [reader, row[0]])
    return SubsetLog(log, row[0], row[1], entries, max(after, row[1]) if last is None else last)


def _listed(connection: postgres.Connection, log: CurrentLog) -> list[DeclaredIndex]:
    values = [index_runs.VERSION_BYTES, UNREAD, log.updated, log.dataset.dataset_id]
    return postgres.select(connection, DeclaredIndex, LIST, values)
