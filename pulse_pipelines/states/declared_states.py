"""States of datasets of events: declare, show, read by key, drop (see `states.state_keys`)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.moments import EPOCH, utc_text
from pulse_pipelines.domain.quota import STATE_KEYS
from pulse_pipelines.domain.schemas.columns import Column
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import RETENTION_MINUTES, Windows
from pulse_pipelines.registry.datasets import find_dataset
from pulse_pipelines.states import declared_windows
from pulse_pipelines.states.declared_windows import DeclaredWindows, KeyWindows
from pulse_pipelines.states.state_keys import can_be_key
from pulse_pipelines.tables import dataset_rows
from pulse_resources import iceberg, postgres
from pulse_resources.errors import Conflict, NotFound, QuotaExceeded, UserError, meant
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock

TENANT_KEYS = 1_000_000
"""Keys of all of a tenant's states together, at most."""

# A move of the dataset waits, or is waited for; rows that refer to it may be written.
HOLD_DATASET = (
    "SELECT dataset_id FROM pdm_datasets WHERE slug = %s AND tenant_id = app_tenant() FOR NO KEY UPDATE"
)
# Batches that have swapped the pointer are waited for; those that come later see the declaration.
HOLD_TABLE = """
SELECT FROM iceberg_catalog.iceberg_tables
WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s FOR UPDATE
"""
FIND = """
SELECT e.latest_by, e.keys, e.max_keys, e.left_out, e.built = e.marks, e.created_at, e.dataset_id
FROM pdm_datasets d JOIN event_states e USING (dataset_id)
WHERE d.slug = %s AND d.tenant_id = app_tenant()
"""
DECLARE = """
INSERT INTO event_states (tenant_id, dataset_id, latest_by, max_keys) VALUES (%s, %s, %s, %s)
ON CONFLICT (dataset_id) DO UPDATE SET max_keys = excluded.max_keys,
    -- With more room than before, keys that were left out can be built from the table.
    marks = event_states.marks
        + (excluded.max_keys > event_states.max_keys AND event_states.left_out > 0)::int,
    left_out = CASE WHEN excluded.max_keys > event_states.max_keys THEN 0 ELSE event_states.left_out END
WHERE event_states.latest_by = excluded.latest_by
"""
TOTAL = "SELECT coalesce(sum(max_keys), 0) FROM event_states WHERE tenant_id = app_tenant()"
FULL = """
SELECT t.slug AS tenant, d.slug AS dataset, e.left_out AS missed_keys, w.newest - w.dropped_to AS minutes
FROM event_states e
JOIN pdm_datasets d USING (dataset_id) JOIN pdm_tenants t ON t.tenant_id = e.tenant_id
LEFT JOIN event_windows w ON w.dataset_id = e.dataset_id AND w.dropped_to > w.newest - %s
WHERE e.left_out > 0 OR w.dataset_id IS NOT NULL ORDER BY 1, 2
"""
DROP = """
DELETE FROM event_states e USING pdm_datasets d
WHERE d.dataset_id = e.dataset_id AND d.slug = %s AND d.tenant_id = app_tenant() RETURNING e.latest_by
"""
# One look says whether there is such a dataset, whether it has a state, with windows, and this the key.
ONE = """
SELECT e.dataset_id, w.sums, k.key, k.at, k.event_id, k.data FROM pdm_datasets d
LEFT JOIN event_states e ON e.dataset_id = d.dataset_id
LEFT JOIN event_windows w ON w.dataset_id = e.dataset_id
LEFT JOIN event_state_keys k ON k.dataset_id = e.dataset_id AND k.key = %s COLLATE "C"
WHERE d.slug = %s AND d.tenant_id = app_tenant()
"""
PAGE = """
SELECT key, at, event_id, data FROM event_state_keys
WHERE dataset_id = (SELECT dataset_id FROM pdm_datasets WHERE slug = %s AND tenant_id = app_tenant())
    AND key >= %s COLLATE "C" AND key IS DISTINCT FROM %s ORDER BY key LIMIT %s
"""


@dataclass(frozen=True)
class DeclaredState:
    latest_by: str
    """The column that is the key."""
    keys: int
    max_keys: int
    left_out: int
    """How often a batch had a key for which there was no room."""
    complete: bool
    """Whether it has all that was in the table; else it is to be built (`state_build`)."""
    created_at: datetime
    windows: DeclaredWindows | None = None


@dataclass(frozen=True)
class Newest:
    """The newest event of a key."""

    key: str
    timestamp: str
    """RFC 3339, in UTC."""
    event_id: str
    data: str | None
    """JSON; None: it is larger than a state keeps."""
    windows: KeyWindows | None = None
    """Where the state has any, and one key is asked for."""


@dataclass(frozen=True)
class FullState:
    """A state that had no room for a key, or whose windows have too little."""

    tenant: str
    dataset: str
    missed_keys: int
    """How often a batch had a key for which there was no room."""
    minutes: int | None
    """Minutes for which its windows have room; None: for as many as they need."""


def declare(
    tenant: Tenant,
    slug: str,
    latest_by: str,
    max_keys: int = STATE_KEYS,
    windows: Windows | None = None,
) -> DeclaredState:
    """Declare the state of a dataset, to be built then; one by the same column stays, with this size.

    Args:
        windows: its windows; None: it has none.

    Raises:
        UserError: there is no such column, or none that can be a key or a sum; or a number is out of range.
        NotFound: the tenant has no such dataset.
        Conflict: it is a dataset of entities, or it has a state by another column.
        QuotaExceeded: the tenant's states have as many keys, or buckets, as they may have.
    """
    where = {"tenant": tenant.slug, "dataset": slug}
    if not 1 <= max_keys <= STATE_KEYS:
        raise UserError(f"a state has from 1 to {STATE_KEYS:,} keys", **where)
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        locks.wait(connection, Lock.DATASETS, tenant.tenant_id)
        locked = connection.execute(HOLD_DATASET, [slug]).fetchone()
        if locked is not None:
            connection.execute(HOLD_TABLE, [iceberg.CATALOG, tenant.namespace, slug])
            (dataset,) = dataset_rows.read(connection, "d.dataset_id = %s", locked)
            name = _key_of(dataset, latest_by, where)
            row = [tenant.tenant_id, dataset.dataset_id, name, max_keys]
            if connection.execute(DECLARE, row).rowcount != 1:
                raise Conflict(
                    "the dataset has a state by another column",
                    fix="Drop it first: pulse state drop, or DELETE .../state",
                    **where,
                )
            (total,) = connection.execute(TOTAL).fetchone() or (0,)
            if total > TENANT_KEYS:
                raise QuotaExceeded(
                    f"the tenant's states may have {TENANT_KEYS:,} keys together, and would have {total:,}",
                    fix="Declare it with fewer (max_keys), or drop another",
                    **where,
                )
            declared_windows.declare(connection, dataset, windows, where)
            return _declared_state(connection, slug)
    find_dataset(tenant, slug)  # says what there is instead
    raise NotFound("no such dataset", **where)


def find(tenant: Tenant, slug: str) -> DeclaredState:
    """The state of a dataset. Raises NotFound: no such dataset; Conflict: it has no state."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if connection.execute(FIND, [slug]).fetchone():
            return _declared_state(connection, slug)
    raise _without_state(tenant, slug)


def drop(tenant: Tenant, slug: str) -> str:
    """Drop the state of a dataset; returns its column. Raises as `find`."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(DROP, [slug]).fetchone()
    if row is None:
        raise _without_state(tenant, slug)
    return str(row[0])


def newest(tenant: Tenant, slug: str, key: str, as_of: datetime | None = None) -> Newest:
    """The newest event of a key, and its windows.

    Args:
        as_of: moment of the windows; None: now.

    Raises:
        NotFound: the tenant has no such dataset, or its state no such key.
        Conflict: the dataset has no state.
        UserError: `as_of` is at the end of all times.
    """
    moment = as_of or datetime.now(UTC)
    if not 2 <= moment.year < MAXYEAR:
        raise UserError("windows end in the years 2 to 9998", tenant=tenant.slug, dataset=slug)
    row: Any = None
    windows: KeyWindows | None = None
    if "\0" not in key:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            row = connection.execute(ONE, [key, slug]).fetchone()
            if row is not None and row[1] is not None and row[2] is not None:
                windows = declared_windows.of_key(connection, row[0], row[1], key, moment)
        if row is None or row[0] is None:
            raise _without_state(tenant, slug)
    if row is None or row[2] is None:
        raise NotFound("the state has no such key", tenant=tenant.slug, dataset=slug)
    return replace(_newest(*row[2:]), windows=windows)


def page(tenant: Tenant, slug: str, after: str | None, limit: int) -> tuple[DeclaredState, list[Newest]]:
    """A state, and the newest events of the keys that follow one (None: of all), by code points.

    Raises:
        NotFound: the tenant has no such dataset.
        Conflict: the dataset has no state.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        if connection.execute(FIND, [slug]).fetchone():
            last = None if after is None else after.replace("\0", "")
            rows = connection.execute(PAGE, [slug, last or "", last, limit]).fetchall()
            return _declared_state(connection, slug), [_newest(*row) for row in rows]
    raise _without_state(tenant, slug)


def full() -> list[FullState]:
    """The states of all tenants that had no room for a key, or too little for windows."""
    with postgres.transaction("pulse_pipeline") as connection:
        return postgres.select(connection, FullState, FULL, [RETENTION_MINUTES])


def check(
    connection: postgres.Connection, tenant: Tenant, dataset: Dataset, columns: Sequence[Column]
) -> None:
    """Check that a dataset's state can be kept with other columns. Raises Conflict: it cannot."""
    row = connection.execute(FIND, [dataset.slug]).fetchone()
    if row is not None and not any(column.name == row[0] and can_be_key(column) for column in columns):
        raise Conflict(
            f"the newer schema has no text and no integer {row[0]}, which is the key of the dataset's state",
            fix="Drop the state first: pulse state drop, or DELETE .../state",
            tenant=tenant.slug,
            dataset=dataset.slug,
        )
    declared_windows.check(connection, tenant, dataset, columns)


def _key_of(dataset: Dataset, latest_by: str, where: dict[str, str]) -> str:
    """The name of the column that is to be the key. Raises UserError, Conflict."""
    if dataset.of_entities:
        raise Conflict(
            "a dataset of entities has a latest state already",
            fix=f"Read it as {dataset.slug}__latest, in SQL",
            **where,
        )
    for column in dataset.columns:
        if latest_by in (column.name, column.field) and can_be_key(column):
            return column.name
    fitting = [column.name for column in dataset.columns if can_be_key(column)]
    raise UserError(
        f"the key must be a property of the schema that is a text or an integer: {latest_by} is not",
        fix=meant(latest_by, fitting),
        **where,
    )


def _declared_state(connection: postgres.Connection, slug: str) -> DeclaredState:
    ((*row, dataset_id),) = connection.execute(FIND, [slug]).fetchall()
    return replace(DeclaredState(*row), windows=declared_windows.find(connection, dataset_id))


def _newest(key: str, at: int, event_id: str, data: str | None) -> Newest:
    moment = utc_text(EPOCH + timedelta(microseconds=at))
    return Newest(key, moment, event_id, data)


def _without_state(tenant: Tenant, slug: str) -> Conflict:
    """The error of a dataset without a state. Raises NotFound: the dataset does not exist."""
    find_dataset(tenant, slug)
    return Conflict(
        "the dataset has no state",
        fix=f"Declare one: PUT /v1/datasets/{slug}/state, or pulse state declare",
        tenant=tenant.slug,
        dataset=slug,
    )
