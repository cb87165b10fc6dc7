"""Pipes as rows: list with their runs, request a run, pause, reset and delete."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pulse_pipelines.domain.pipes import Definition, Mode, definition as parse_definition, parted
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities import indexes
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.postgres import slots
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound, Transient, UserError

_log = logging.getLogger("pulse.pipes")

# Each run begins where the previous one has settled, so the last sync that has settled is the latest.
_PIPES = """
SELECT t.tenant_id, t.slug, p.pipe, d.slug, p.dataset_id, p.definition, p.state, p.error, p.begun_at,
    p.asked_at, CASE WHEN p.delivers THEN CASE WHEN (p.confirmed->>'epoch')::bigint = p.anew_after
        THEN (p.confirmed->>'generation') || '-' || (p.confirmed->>'updated') END
    ELSE (
        SELECT s.position FROM entity_syncs s WHERE s.tenant_id = p.tenant_id AND s.pipe = p.pipe
            AND s.sync_id > p.anew_after AND s.settled_at IS NOT NULL AND s.position IS NOT NULL
        ORDER BY s.sync_id DESC LIMIT 1) END,
    last.settled_at, extract(epoch FROM now() - last.as_of)::float8, p.wal_bytes, p.wal_status,
    CASE WHEN p.delivers THEN l.updated - CASE WHEN (p.confirmed->>'epoch')::bigint = p.anew_after
        AND (p.confirmed->>'generation')::bigint = l.generation THEN (p.confirmed->>'updated')::bigint
        ELSE 0 END END, p.computes
FROM pipes p JOIN pdm_tenants t USING (tenant_id) JOIN pdm_datasets d USING (dataset_id)
LEFT JOIN entity_logs l USING (dataset_id)
LEFT JOIN LATERAL (
    (SELECT s.settled_at, s.as_of FROM entity_syncs s
    WHERE NOT p.delivers AND s.tenant_id = p.tenant_id AND s.pipe = p.pipe AND s.settled_at IS NOT NULL
    ORDER BY s.sync_id DESC LIMIT 1)
    UNION ALL
    (SELECT v.ended_at, v.begun_at FROM pipe_deliveries v
    WHERE p.delivers AND v.tenant_id = p.tenant_id AND v.pipe = p.pipe AND v.state = 'done'
    ORDER BY v.delivery_id DESC LIMIT 1)) last ON true
"""
LIST = f"{_PIPES} WHERE p.tenant_id = %s ORDER BY p.pipe"
FIND = f"{_PIPES} WHERE p.tenant_id = %s AND p.pipe = %s"
# Due only when all earlier runs have settled: each begins where its rows are known to be in the log.
DUE = f"""
{_PIPES} WHERE (p.asked_at IS NOT NULL OR p.state = 'active' AND p.every_seconds IS NOT NULL
        AND coalesce(p.begun_at < now() - make_interval(secs => p.every_seconds), true))
    AND NOT EXISTS (SELECT FROM entity_syncs s WHERE s.tenant_id = p.tenant_id AND s.pipe = p.pipe
        AND s.state = 'sent' AND s.settled_at IS NULL)
ORDER BY p.asked_at, p.begun_at NULLS FIRST, t.slug, p.pipe
"""
ALL = f"{_PIPES} ORDER BY t.slug, p.pipe"
ASK = "UPDATE pipes SET asked_at = now() WHERE pipe = %s"
PAUSE = "UPDATE pipes SET state = 'paused', asked_at = NULL WHERE pipe = %s"
RESUME = "UPDATE pipes SET state = 'active' WHERE pipe = %s"
RESET = """
UPDATE pipes p SET anew_after = CASE WHEN delivers THEN anew_after + 1 ELSE coalesce((
    SELECT max(sync_id) FROM entity_syncs s WHERE s.tenant_id = p.tenant_id AND s.pipe = p.pipe), 0) END
WHERE pipe = %s
"""
ABANDON = """
UPDATE entity_syncs s SET state = 'failed', ended_at = now(), reason = 'its run ended before all was sent'
WHERE s.pipe = %s AND s.state = 'open'"""
# A run with a position is continued, unless the pipe was reset since.
ABANDON_DEAD = f"""{ABANDON} AND (s.position IS NULL
    OR s.sync_id <= (SELECT anew_after FROM pipes p WHERE p.tenant_id = s.tenant_id AND p.pipe = s.pipe))"""  # noqa: S608
UNSETTLED = """
SELECT EXISTS (SELECT FROM entity_syncs WHERE tenant_id = %s AND pipe = %s AND state = 'sent'
    AND settled_at IS NULL)
"""
OWNERS = """
SELECT p.pipe, CASE WHEN count(*) = 1 THEN min(t.slug) END
FROM pipes p JOIN pdm_tenants t USING (tenant_id) GROUP BY p.pipe ORDER BY p.pipe
"""
MADE = "SELECT t.slug, p.pipe, p.created_at FROM pipes p JOIN pdm_tenants t USING (tenant_id)"

_SHOWN = ("table", "path", "format", "feed", "transform", "timestamp")
"""Members of its other end."""


@dataclass(frozen=True)
class Pipe:
    """A pipe of a tenant, and its progress."""

    tenant: Tenant
    name: str
    dataset: str
    dataset_id: UUID
    definition: Definition
    state: str
    error: str | None
    begun_at: datetime | None
    asked_at: datetime | None
    position: str | None
    """Position in the source up to which its rows have settled; None: the next run reads all rows."""
    settled_at: datetime | None
    """When the last run's rows settled."""
    lag_seconds: float | None
    """Age of the moment up to which everything in the source has settled; None: no run has settled."""
    wal_bytes: int | None
    """Bytes of its log that the source keeps for the pipe's slot, when it was last looked at ..."""
    wal_status: str | None
    """... and what the source says about them: reserved, extended, unreserved or lost."""
    behind: int | None = None
    """Versions of the log that the sink does not have yet; None for a pipe without a sink."""
    computes: str | None = None
    """What the last run of a transform computed, and why."""
    form: str | None = None
    """The part of its position that people do not see: the form of its table (`postgres.cursors`)."""

    @property
    def document(self) -> dict[str, Any]:
        """A pipe as people see it."""
        members = self.definition.other_end.document
        return {
            "pipe": self.name,
            "direction": "out" if self.definition.delivers else "in",
            "other_end": str(self.definition.other_end),
            "source": self.definition.other_end.source,
            **{name: members.get(name) for name in _SHOWN},
            "dataset": self.dataset,
            "mode": self.definition.other_end.mode,
            "computes": self.computes,
            "every_seconds": self.definition.every_seconds,
            "state": self.state,
            "position": self.position,
            "begun_at": self.begun_at,
            "settled_at": self.settled_at,
            "lag_seconds": None if self.lag_seconds is None else round(self.lag_seconds, 1),
            "behind": self.behind,
            "wal_bytes": self.wal_bytes,
            "wal_status": self.wal_status,
            "error": self.error,
        }


def find(tenant: Tenant, name: str) -> Pipe:
    """Find a pipe. Raises NotFound."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        row = connection.execute(FIND, [tenant.tenant_id, name]).fetchone()
    if row is None:
        raise NotFound("no such pipe", fix=_list(tenant), tenant=tenant.slug, pipe=name)
    return _pipe(row)


def _list(tenant: Tenant) -> str:
    return f"List the pipes: pulse pipe list {tenant.slug}"


def list_pipes(tenant: Tenant) -> list[Pipe]:
    """List the pipes of a tenant, by name."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return [_pipe(row) for row in connection.execute(LIST, [tenant.tenant_id])]


def due() -> list[Pipe]:
    """List the pipes of all tenants that are due, except those that `list_all_pipes` leaves out.

    Requested ones are first, then those that have not run for the longest time.
    """
    with postgres.transaction("pulse_pipeline") as connection:
        return _readable(connection.execute(DUE))


def list_all_pipes() -> list[Pipe]:
    """List the pipes of all tenants; one whose definition is invalid today is left out, and logged."""
    with postgres.transaction("pulse_pipeline") as connection:
        return _readable(connection.execute(ALL))


def unsettled(connection: postgres.Connection, pipe: Pipe) -> bool:
    """Whether rows that the pipe's last run sent have not settled yet."""
    ((exists,),) = connection.execute(UNSETTLED, [pipe.tenant.tenant_id, pipe.name]).fetchall()
    return bool(exists)


def owners() -> dict[str, str | None]:
    """Slug of the tenant that has a pipe, by the pipes' names; None: several tenants have one."""
    with postgres.transaction("pulse_pipeline") as connection:
        return dict(connection.execute(OWNERS).fetchall())


def creation_times() -> dict[tuple[str, str], datetime]:
    """When each pipe of all tenants was created, by slug of the tenant and name."""
    with postgres.transaction("pulse_pipeline") as connection:
        return {(tenant, name): at for tenant, name, at in connection.execute(MADE)}


def ask(tenant: Tenant, name: str, *, full: bool = False) -> None:
    """Request a run of a pipe, paused or not. Raises NotFound.

    Args:
        full: have it read all rows, as after `reset`.
    """
    if full:
        reset(tenant, name)
    _change(tenant, name, ASK, [name])


def pause(tenant: Tenant, name: str, *, paused: bool) -> None:
    """Pause a pipe's schedule and drop a request for a run, or resume it. Raises NotFound."""
    _change(tenant, name, PAUSE if paused else RESUME, [name])


def reset(tenant: Tenant, name: str) -> None:
    """Have the next run read all rows, of entities as a full sync. Raises NotFound."""
    _change(tenant, name, RESET, [name])


def delete(tenant: Tenant, name: str, *, leave_slot: bool = False) -> str:
    """Delete a pipe, and its slot in the source; the dataset and the sink's data stay. Returns its slug.

    Args:
        leave_slot: do not contact the source, which no longer exists: its slot stays.

    Raises:
        NotFound: the tenant has no such pipe.
        Conflict: its source is not configured.
        Transient: the source does not answer, and has a slot, which would keep its log permanently.
    """
    pipe = find(tenant, name)
    definition = pipe.definition
    if definition.other_end.mode is Mode.CHANGES and not leave_slot:
        try:
            slots.remove(addresses.url(tenant, definition.of_postgres.source), tenant, definition)
        except NotFound as error:
            raise Conflict(error.message, fix=f"{error.fix}. {_LEAVE_SLOT}", **error.where) from None
        except Transient as error:
            raise Transient(error.message, fix=_LEAVE_SLOT, **error.where) from None
    _change(tenant, name, "DELETE FROM pipes WHERE pipe = %s", [name])
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(ABANDON, [name])
        connection.execute(indexes.RELEASE, [indexes.reader_of(name)])
    return pipe.dataset


_LEAVE_SLOT = "If the source no longer exists, delete the pipe without it: leave-slot, leave_slot=true"


def _change(tenant: Tenant, name: str, statement: str, values: Sequence[object]) -> None:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        if connection.execute(statement, values).rowcount != 1:
            raise NotFound("no such pipe", fix=_list(tenant), tenant=tenant.slug, pipe=name)


def _readable(rows: Iterable[Sequence[Any]]) -> list[Pipe]:
    valid = []
    for row in rows:
        try:
            valid.append(_pipe(row))
        except UserError as error:  # an earlier version wrote it: it stops no other tenant's pipes
            _log.error("pipe %s of tenant %s does not run: %s", row[2], row[1], error)
    return valid


def _pipe(row: Sequence[Any]) -> Pipe:
    tenant_id, tenant, name, dataset, dataset_id, document, *columns = row
    pipe = Pipe(Tenant(tenant_id, tenant), name, dataset, dataset_id, parse_definition(document), *columns)
    position, form = parted(pipe.position or "")
    return replace(pipe, position=position, form=form) if form else pipe
