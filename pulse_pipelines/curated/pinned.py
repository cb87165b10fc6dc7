"""Pinned datasets: the consistent state of a dataset and its table that rollups are computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from uuid import UUID

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import dataset_rows
from pulse_resources import iceberg, postgres
from pulse_resources.errors import NotFound, PulseError
from pulse_resources.iceberg import readable

NEVER = datetime.fromtimestamp(0, UTC)
"""The last change of a day in which no event has landed."""

LANDED = """
SELECT day, max(landed_at) FROM landings
WHERE tenant_id = %s AND dataset_id = %s AND day = ANY(%s) GROUP BY day
"""


@dataclass(frozen=True)
class Pinned:
    """A dataset at one moment: its row, the snapshot of its table, and the last changes of its days."""

    tenant: Tenant
    dataset: Dataset
    location: str
    """Location of its table's metadata."""
    snapshot_id: int | None
    columns: Mapping[str, str]
    landed: Mapping[date, datetime]


def pin(tenant: Tenant, dataset_id: UUID, days: Sequence[date]) -> Pinned | None:
    """Pin the current state of a dataset, in the tenant's session; None when it was deleted meanwhile."""
    read = partial(_read_state, tenant, dataset_id, days)
    try:
        return readable.as_it_is(partial(_pin, tenant), read(), read, lambda state: state.location)
    except NotFound:
        return None


def is_outdated(pinned: Pinned) -> bool:
    """Whether the pinned snapshot is no longer in the table: an erasure or expiry has removed it."""
    read = partial(_read_state, pinned.tenant, pinned.dataset.dataset_id, ())

    def has_snapshot(state: _DatasetState) -> bool:
        table = iceberg.load_table((pinned.tenant.namespace, state.dataset.slug), state.location)
        return pinned.snapshot_id is None or table.snapshot_by_id(pinned.snapshot_id) is not None

    try:
        return not readable.as_it_is(has_snapshot, read(), read, lambda state: state.location)
    except NotFound:
        return True
    except (PulseError, OSError):  # the cause of the first failure, too
        return False


@dataclass(frozen=True)
class _DatasetState:
    """The state of a dataset in Postgres at one moment."""

    dataset: Dataset
    location: str
    landed: Mapping[date, datetime]


def _read_state(tenant: Tenant, dataset_id: UUID, days: Sequence[date]) -> _DatasetState:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id, one_snapshot=True) as connection:
        for dataset in dataset_rows.read(connection, "d.dataset_id = %s", [dataset_id]):
            location = iceberg.current_location(connection, (tenant.namespace, dataset.slug))
            landed = dict(connection.execute(LANDED, [tenant.tenant_id, dataset_id, list(days)]).fetchall())
            return _DatasetState(dataset, location, {day: landed.get(day, NEVER) for day in days})
    raise NotFound("no such dataset", tenant=tenant.slug, dataset=dataset_id)


def _pin(tenant: Tenant, state: _DatasetState) -> Pinned:
    table = iceberg.load_table((tenant.namespace, state.dataset.slug), state.location)
    readable.check_snapshot(table)  # Spark would silently compute from the files that it can read
    snapshot = table.current_snapshot()
    schema = table.schemas()[snapshot.schema_id] if snapshot and snapshot.schema_id is not None else None
    return Pinned(
        tenant,
        state.dataset,
        state.location,
        snapshot.snapshot_id if snapshot else None,
        {column.name: str(column.field_type) for column in (schema or table.schema()).fields},
        state.landed,
    )
