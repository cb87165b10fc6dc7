"""Previews: the newest rows of a dataset, whose slug is resolved in the tenant's RLS session."""

import os
import time
from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event import Rejected, parse_timestamp
from pulse_pipelines.domain.expressions import compiler
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import MAX_ROWS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool, partial_table
from pulse_pipelines.query.file_pruning import ALWAYS, BoundedFile, Span, newest_files, widening_spans
from pulse_pipelines.query.snapshots import (
    as_of as snapshot_as_of,
    by_id,
    manifests,
    of_current,
    store_errors_explained,
)
from pulse_pipelines.tables.iceberg_schema import IS_DELETED
from pulse_resources import iceberg
from pulse_resources.errors import UserError
from pulse_resources.iceberg import readable
from pulse_resources.settings import load_settings

QUERY = """
SELECT {columns} FROM {scan} WHERE {within} AND {only}
ORDER BY timestamp DESC, _kafka_partition, _offset LIMIT ?
"""
AT_OR_AFTER = "timestamp >= make_timestamptz(?::BIGINT)"
BEFORE = "timestamp < make_timestamptz(?::BIGINT)"


def moment(text: object) -> datetime:
    """Parse an RFC 3339 timestamp with its zone, to UTC. Raises UserError."""
    timestamp = parse_timestamp(text)
    if isinstance(timestamp, Rejected):
        text = str(text)
        if timestamp.reason == Reason.TIMESTAMP_OUT_OF_RANGE:
            detail = f"{text[:40]!r} is outside the years 1 to 9999 in UTC"
            raise UserError(detail, fix="Name a time within them")
        raise UserError(
            f"{text[:40]!r} is not a time: {timestamp.detail}", fix="Write it like 2026-11-19T10:00:00Z"
        )
    return timestamp


def warm() -> None:
    """Prepare the DuckDB instance that the first preview of this process needs."""
    duckdb_pool.warm(limits())


def limits() -> duckdb_pool.Limits:
    """The limits of previews, from the settings."""
    api = load_settings().api
    return duckdb_pool.Limits(
        "previews",
        memory=api.preview_memory,
        threads=max(1, (os.cpu_count() or 1) // api.preview_parallelism),
        instances=1,  # a process runs one preview at a time
        seconds=api.preview_seconds,
        trust_cache=True,  # data files have unique names and are immutable
    )


def preview(
    tenant: Tenant,
    slug: str,
    limit: int,
    *,
    columns: Sequence[str] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    subset: str | None = None,
) -> pa.Table:
    """Read at most `limit` rows of the dataset, latest event first, then by partition and offset.

    Args:
        tenant, slug: whose dataset.
        limit: 1 to `MAX_ROWS` rows.
        columns: names of table columns, in the order wanted; all in the table's order if not given.
        start, end: rows with start <= timestamp < end; each may be absent.
        snapshot_id: read the table at this snapshot, with its schema of that time.
        as_of: read the table as of this moment; before its first snapshot it had no rows.
        subset: `<expression>=<value>` (see `domain.expressions.compiler`): rows with this value.

    Returns:
        The rows with the table's own columns, physical ones included; timestamps in UTC.

    Raises:
        UserError: a value is out of its range, a column is not in the table, `snapshot_id` and
            `as_of` are both given, or the rows need more memory than a preview has.
        NotFound: the tenant has no such dataset, even if another tenant has; the dataset has no such
            snapshot; or the snapshot that was current at `as_of` has expired.
        Terminal: the dataset's table, or a file of it, is gone or damaged.
        Transient: the object store does not answer, previews are busy, or time is up.
    """
    allowed = limits()
    until = time.monotonic() + (allowed.seconds or 0)
    _check(limit, start, end, snapshot_id, as_of)
    span = Span.between(start, end)
    dataset = None if subset is None else registry.find_dataset(tenant, slug)

    def newest(metadata: TableMetadata) -> pa.Table:
        snapshot, schema = _snapshot(metadata, snapshot_id, as_of)
        chosen = _columns(schema, columns)
        only = "true" if dataset is None or subset is None else _only(dataset, schema, subset)
        ample = limit if subset is None else ALWAYS  # any file may have rows of the subset
        files = None if snapshot is None else _files(metadata, snapshot, span, ample, until)
        data_files = None if files is None else [bounded.file for bounded in files]
        with (
            duckdb_pool.connect(allowed, until) as connection,
            partial_table.of_files(metadata, snapshot, schema.schema_id, data_files) as location,
        ):
            for part in widening_spans(files, span, limit):
                within, moments = _within(part)
                scan = duckdb_pool.WHOLE_SCAN if -ALWAYS < part.start < 0 else duckdb_pool.SCAN
                query = QUERY.format(columns=chosen, scan=scan, within=within, only=only)
                rows = connection.execute(query, [location, *moments, limit]).to_arrow_table()
                if rows.num_rows == limit:
                    break
            return rows

    return of_current(newest, tenant, slug)


def _check(
    limit: int,
    start: datetime | None,
    end: datetime | None,
    snapshot_id: int | None,
    as_of: datetime | None,
) -> None:
    if not 1 <= limit <= MAX_ROWS:
        raise UserError(f"the limit is {limit}", fix=f"Ask for 1 to {MAX_ROWS:,} rows")
    if any(at is not None and at.utcoffset() is None for at in (start, end, as_of)):
        raise UserError("the time has no time zone", fix="Write it like 2026-11-19T10:00:00Z")
    if snapshot_id is not None and as_of is not None:
        raise UserError("both a snapshot and a time are given", fix="Give one of them")


def _snapshot(
    metadata: TableMetadata, snapshot_id: int | None, as_of: datetime | None
) -> tuple[Snapshot | None, Schema]:
    """The snapshot to read (None: no rows), and the schema to read it with.

    The current state is read with the current schema, which may have columns that no snapshot has yet.
    """
    if snapshot_id is not None:
        snapshot: Snapshot | None = by_id(metadata, snapshot_id)
    elif as_of is not None:
        snapshot = snapshot_as_of(metadata, as_of)
    else:
        return metadata.current_snapshot(), metadata.schema()
    if snapshot is None or snapshot.schema_id is None:
        return snapshot, metadata.schema()
    return snapshot, metadata.schema_by_id(snapshot.schema_id) or metadata.schema()


def _columns(schema: Schema, selected: Sequence[str] | None) -> str:
    """The select list of column names, each of which must match a column of the table exactly."""
    names = [field.name for field in schema.fields]
    chosen = names if selected is None else list(selected)
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        missing = f"the dataset has no column {', '.join(map(repr, unknown))}"
        raise UserError(
            missing if unknown else "no column is named", fix=f"Its columns are: {', '.join(names)}"
        )
    if len(set(chosen)) < len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        raise UserError(f"the column {twice!r} is named twice", fix="Name each column once")
    return ", ".join('"{}"'.format(name.replace('"', '""')) for name in chosen)


def _only(dataset: Dataset, schema: Schema, text: str) -> str:
    """The condition that a row is in a subset. Raises UserError: it is none, or by a column of later."""
    subset = compiler.subset(text, dataset.columns)
    lacking = subset.expression.columns.difference(field.name for field in schema.fields)
    if lacking:
        raise UserError(f"the snapshot has no column {min(lacking)!r} yet", fix="Read a later one")
    return f"NOT {IS_DELETED} AND {subset.sql}" if dataset.of_entities else subset.sql


def _within(span: Span) -> tuple[str, list[int]]:
    """The condition that a row is within the span, and its parameters."""
    after, before = span.start > -ALWAYS, span.end < ALWAYS
    parts = ["true", *[AT_OR_AFTER] * after, *[BEFORE] * before]
    return " AND ".join(parts), [*[span.start] * after, *[span.end] * before]


def _files(
    metadata: TableMetadata, snapshot: Snapshot, span: Span, limit: int, until: float
) -> list[BoundedFile] | None:
    try:
        with store_errors_explained():
            listed = manifests(snapshot.manifest_list)
            files = newest_files(metadata, listed, span, limit, until)
            if files is None:  # DuckDB reads all manifests itself
                readable.check(listed, iceberg.file_io())
            return files
    except TimeoutError as error:
        raise limits().too_late() from error
