"""Versions: pages of a log of entities, or of a subset of it, in the order of the log.

A page begins after a *continuation*, `<generation>-<_updated>`. Versions become visible in the order of
`_updated`, without a gap: a reader that continues from the last version it read misses none.

The log of a subset are the versions with its value, and those that no longer have it: to its reader these are
deletions.
"""

import gzip
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pulse_pipelines import registry
from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.as_sent import event_data
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import index_build, indexes
from pulse_pipelines.entities.indexes import SubsetLog
from pulse_pipelines.query import duckdb_pool, partial_table
from pulse_pipelines.query.file_pruning import files_between
from pulse_pipelines.query.preview import limits
from pulse_pipelines.query.snapshots import manifests, metadata_at, store_errors_explained
from pulse_pipelines.registry import CurrentLog
from pulse_pipelines.tables.iceberg_schema import HASH, IS_DELETED, UPDATED
from pulse_resources.errors import Conflict
from pulse_resources.iceberg import readable

_ABOUT = ("id", UPDATED, IS_DELETED, HASH, "ingested_at", "schema_version", "_extra")
_WITHIN = f"SELECT {{}} FROM {duckdb_pool.SCAN} WHERE {UPDATED} > ? AND {UPDATED} <= ?"  # noqa: S608 - constants
QUERY = f"{_WITHIN} ORDER BY {UPDATED} LIMIT ?"
QUERY_ONLY = f"{_WITHIN} AND {UPDATED} IN (SELECT unnest(?::BIGINT[])) ORDER BY {UPDATED}"
BUILT_ON_READ = 100_000
"""Versions of a log of which a page brings an index up to date that is behind; of a longer one it shows what
the index has."""
GZIP_LEVEL = 1


@dataclass(frozen=True)
class Page:
    lines: bytes
    """A JSON object per version, each with a line feed; gzipped if asked for."""
    following: str
    """The continuation after the page."""


@dataclass(frozen=True)
class Versions:
    """Versions of a log, or of a subset of it, as readers get them."""

    versions: list[dict[str, Any]]
    generation: int
    last: int
    """The place in the log up to which these are all."""


def page(
    tenant: Tenant,
    slug: str,
    since: str | None,
    limit: int,
    packed: bool,
    subset: str | None = None,
    reader: str | None = None,
) -> Page:
    """Read at most `limit` versions after a continuation; an empty page if there are none yet.

    Args:
        packed: compress with gzip.

    The other arguments and the errors are those of `after`.
    """
    read = after(tenant, slug, since, limit, subset, reader)
    lines = b"".join(json_values.written(version) + b"\n" for version in read.versions)
    if packed:
        lines = gzip.compress(lines, GZIP_LEVEL, mtime=0)
    return Page(lines, f"{read.generation}-{read.last}")


def after(
    tenant: Tenant,
    slug: str,
    since: str | None,
    limit: int,
    subset: str | None = None,
    reader: str | None = None,
) -> Versions:
    """Read at most `limit` versions after a continuation; none if there are none yet.

    Args:
        since: a continuation; None: from the start.
        subset: `<expression>=<value>`, to read only the log of this subset.
        reader: id of the API key that reads, or a pipe.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: it is a dataset of events, it has no index for the subset, or its log was rebuilt: `since`
            names the new start.
        UserError: `subset` is not valid.
        Terminal: a file of the table is gone or damaged.
        Transient: the object store does not answer, previews are busy, or time is up.
    """
    if subset is not None:
        return _of_subset(tenant, slug, since, limit, subset, reader)
    read_log = partial(registry.current_log, tenant, slug)

    def read(log: CurrentLog) -> Versions:
        start = _after(tenant, log, since)
        last = min(start + limit, log.updated)
        rows = _rows(tenant, log, start, last) if last > start else ()
        return Versions([_version(log.dataset, row) for row in rows], log.generation, last)

    return readable.as_it_is(read, read_log(), read_log, lambda log: log.metadata_location)


def _of_subset(
    tenant: Tenant, slug: str, since: str | None, limit: int, subset: str, reader: str | None
) -> Versions:
    start = 0 if since is None else int(since.partition("-")[2])
    read_subset = partial(indexes.subset_log, tenant, slug, subset, start, limit, reader)
    subset_log = read_subset()
    if (
        subset_log.covered < subset_log.log.updated <= BUILT_ON_READ
    ):  # it fell behind, or its build ended halfway
        index_build.build(tenant, slug, subset_log.index_id)
        subset_log = read_subset()

    def read(subset_log: SubsetLog) -> Versions:
        log, entries = subset_log.log, subset_log.entries
        _after(tenant, log, since)
        rows = _rows(tenant, log, start, subset_log.last, list(entries)) if entries else ()
        page = [_version(log.dataset, row, deleted=not entries[row[UPDATED]]) for row in rows]
        return Versions(page, log.generation, subset_log.last)

    return readable.as_it_is(
        read, subset_log, read_subset, lambda subset_log: subset_log.log.metadata_location
    )


def _after(tenant: Tenant, log: CurrentLog, since: str | None) -> int:
    """The place in the log that a continuation names. Raises Conflict: the log is another one."""
    generation, after = (log.generation, 0) if since is None else map(int, since.split("-"))
    if generation != log.generation or after > log.updated:
        raise Conflict(
            "the log was rebuilt since: its versions have other places now",
            fix="Read it from the start that `since` names, and forget what it had before",
            since=f"{log.generation}-0",
            tenant=tenant.slug,
            dataset=log.dataset.slug,
        )
    return after


def _rows(
    tenant: Tenant, log: CurrentLog, after: int, last: int, only: Sequence[int] | None = None
) -> Iterable[Mapping[str, Any]]:
    """The versions with `after` < `_updated` <= `last`.

    Args:
        only: the versions of these, ascending; None: all.
    """
    allowed = limits()
    until = time.monotonic() + (allowed.seconds or 0)
    with store_errors_explained():
        metadata = metadata_at((tenant.namespace, log.dataset.slug), log.metadata_location)
        snapshot = metadata.current_snapshot()
        files = None if snapshot is None else _files(metadata, snapshot, after, last, until, only)
    with (
        duckdb_pool.connect(allowed, until) as connection,
        partial_table.of_files(metadata, snapshot, metadata.current_schema_id, files) as location,
    ):
        query, value = (QUERY, last - after) if only is None else (QUERY_ONLY, list(only))
        names = ", ".join(f'"{name}"' for name in (*_ABOUT, *(column.name for column in log.dataset.columns)))
        query = query.format(names)
        rows = connection.execute(query, [location, after, last, value]).to_arrow_table()
    return _as_rows(rows)


def _as_rows(rows: pa.Table) -> Iterable[Mapping[str, Any]]:
    """As `to_pylist`, which takes most of its time to give moments a time zone by its name."""
    names, columns = rows.column_names, map(_values, rows.columns)
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type) or column.type.tz is None:
        return column.to_pylist()  # type: ignore[no-any-return]
    moments = column.cast(pa.timestamp(column.type.unit)).to_pylist()
    return [moment and moment.replace(tzinfo=UTC) for moment in moments]


def _files(
    metadata: TableMetadata,
    snapshot: Snapshot,
    after: int,
    last: int,
    until: float,
    only: Sequence[int] | None,
) -> list[DataFile] | None:
    """The files that may hold these versions; None if file bounds do not tell."""
    listed = manifests(snapshot.manifest_list)
    column = metadata.schema().find_field(UPDATED).field_id
    try:
        files = files_between(metadata, listed, column, after + 1, last, until)
    except TimeoutError as error:
        raise limits().too_late() from error
    if files is None:
        return None
    return [
        bounded.file
        for bounded in files
        if only is None or bisect_left(only, bounded.low) < bisect_right(only, bounded.high)
    ]


def _version(dataset: Dataset, row: Mapping[str, Any], *, deleted: bool = False) -> dict[str, Any]:
    """A version as readers get it: the entity as it was sent, typed by its columns.

    Args:
        deleted: the entity has left the subset that is read.
    """
    deleted = deleted or row[IS_DELETED]
    about = {
        ID: row["id"],
        "_updated": row[UPDATED],
        DELETED: deleted,
        "_hash": None if deleted else row[HASH],
        "_ts": utc_text(row["ingested_at"]),
    }
    if deleted:
        return about
    return about | event_data(dataset, row, dataset.documents[row["schema_version"]])
