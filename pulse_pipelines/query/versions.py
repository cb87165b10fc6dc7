"""Versions: pages of a log of entities, in the order of the log.

A page begins after a *continuation*, `<generation>-<_updated>`. Versions become visible in the order of
`_updated`, without a gap: a reader that continues from the last version it read misses none.
"""

import gzip
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.entities import DELETED, ID
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query import duckdb_pool, partial_table
from pulse_pipelines.query.as_sent import event_data
from pulse_pipelines.query.file_pruning import files_between
from pulse_pipelines.query.preview import limits
from pulse_pipelines.query.snapshots import manifests, metadata_at, store_errors_explained
from pulse_pipelines.registry import CurrentLog
from pulse_pipelines.tables.iceberg_schema import HASH, IS_DELETED, UPDATED
from pulse_resources import readable
from pulse_resources.errors import Conflict

QUERY = f"""
SELECT * FROM {duckdb_pool.SCAN} WHERE {UPDATED} > ? AND {UPDATED} <= ? ORDER BY {UPDATED} LIMIT ?
"""  # noqa: S608 - from constants
GZIP_LEVEL = 1


@dataclass(frozen=True)
class Page:
    lines: bytes
    """A JSON object per version, each with a line feed; gzipped if asked for."""
    following: str
    """The continuation after the page."""


def page(tenant: Tenant, slug: str, since: str | None, limit: int, packed: bool) -> Page:
    """Read at most `limit` versions after a continuation; an empty page if there are none yet.

    Args:
        since: a continuation; None: from the start.
        packed: compress with gzip.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: it is a dataset of events, or its log was rebuilt: `since` names the new start.
        Terminal: a file of the table is gone or damaged.
        Transient: the object store does not answer, previews are busy, or time is up.
    """
    look = partial(registry.current_log, tenant, slug)
    read = partial(_page, tenant, since, limit, packed)
    return readable.as_it_is(read, look(), look, lambda log: log.metadata_location)


def _page(tenant: Tenant, since: str | None, limit: int, packed: bool, log: CurrentLog) -> Page:
    generation, after = (log.generation, 0) if since is None else map(int, since.split("-"))
    if generation != log.generation or after > log.updated:
        raise Conflict(
            "the log was rebuilt since: its versions have other places now",
            fix="Read it from the start that `since` names, and forget what it had before",
            since=f"{log.generation}-0",
            tenant=tenant.slug,
            dataset=log.dataset.slug,
        )
    last = min(after + limit, log.updated)
    rows = _rows(tenant, log, after, last) if last > after else ()
    lines = b"".join(orjson.dumps(_version(log.dataset, row)) + b"\n" for row in rows)
    if packed:
        lines = gzip.compress(lines, GZIP_LEVEL, mtime=0)
    return Page(lines, f"{generation}-{last}")


def _rows(tenant: Tenant, log: CurrentLog, after: int, last: int) -> Iterable[Mapping[str, Any]]:
    """The versions with `after` < `_updated` <= `last`."""
    allowed = limits()
    until = time.monotonic() + (allowed.seconds or 0)
    with store_errors_explained():
        metadata = metadata_at((tenant.namespace, log.dataset.slug), log.metadata_location)
        snapshot = metadata.current_snapshot()
        files = None if snapshot is None else _files(metadata, snapshot, after, last, until)
    with (
        duckdb_pool.connect(allowed, until) as connection,
        partial_table.of_files(metadata, snapshot, metadata.current_schema_id, files) as location,
    ):
        found = connection.execute(QUERY, [location, after, last, last - after]).to_arrow_table()
    return found.to_pylist()  # type: ignore[no-any-return]


def _files(
    metadata: TableMetadata, snapshot: Snapshot, after: int, last: int, until: float
) -> list[DataFile] | None:
    """The files that may hold these versions; None if file bounds do not tell."""
    listed = manifests(snapshot.manifest_list)
    column = metadata.schema().find_field(UPDATED).field_id
    try:
        found = files_between(metadata, listed, column, after + 1, last, until)
    except TimeoutError as error:
        raise limits().too_late() from error
    return None if found is None else [bounded.file for bounded in found]


def _version(dataset: Dataset, row: Mapping[str, Any]) -> dict[str, Any]:
    """A version as readers get it: the entity as it was sent, typed by its columns."""
    about = {
        ID: row["id"],
        "_updated": row[UPDATED],
        DELETED: row[IS_DELETED],
        "_hash": row[HASH],
        "_ts": row["ingested_at"].isoformat().replace("+00:00", "Z"),
    }
    if row[IS_DELETED]:
        return about
    return about | event_data(dataset, row, dataset.documents[row["schema_version"]])
