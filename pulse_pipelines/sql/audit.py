"""Audit record of queries in Postgres: inserted before a query runs, updated when it has ended."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.types.json import Jsonb

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound
from pulse_resources.settings import load_settings

BEGIN = "INSERT INTO sql_queries (tenant_id, query_id, key_id, sql) VALUES (%s, %s, %s, %s)"
FORGET = "DELETE FROM sql_queries WHERE asked_at < now() - make_interval(secs => %s)"
PINNED = "UPDATE sql_queries SET snapshots = %s WHERE query_id = %s"
END = """
UPDATE sql_queries SET state = CASE state WHEN 'cancelled' THEN state ELSE %s END,
    rows = %s, bytes = %s, seconds = %s, error = %s
WHERE query_id = %s
"""
CANCEL = """
UPDATE sql_queries SET state = CASE state WHEN 'running' THEN 'cancelled' ELSE state END
WHERE query_id = %s RETURNING {fields}
"""
# A query that is recorded as running for so long: its process died without recording an end.
LOST = "state = 'running' AND asked_at < now() - make_interval(secs => {lost})"
FIELDS = f"""
query_id, key_id, sql, snapshots, rows, bytes, seconds, asked_at,
CASE WHEN {LOST} THEN 'failed' ELSE state END AS state,
CASE WHEN {LOST} THEN 'the process of Pulse that ran it has ended: ask again' ELSE error END AS error
"""
LIST = "SELECT {fields} FROM sql_queries WHERE NOT %s OR state = 'running' ORDER BY asked_at DESC LIMIT %s"
CANCELLED = "SELECT query_id FROM sql_queries WHERE query_id = ANY(%s) AND state = 'cancelled'"


@dataclass(frozen=True)
class Recorded:
    """A query's audit record."""

    query_id: str
    key_id: str | None
    """Id of the API key; None: an operator used the command line."""
    sql: str
    state: str
    """running, done, failed or cancelled."""
    snapshots: Mapping[str, int | None]
    """Snapshot id by table; None: the table was empty."""
    rows: int | None
    bytes: int | None
    seconds: float | None
    error: str | None
    asked_at: datetime


def new_id() -> str:
    """An id for a query whose caller did not choose one."""
    return secrets.token_hex(8)


def begin(tenant: Tenant, query_id: str, key_id: str | None, sql: str) -> None:
    """Record a query that is about to run, and delete expired records.

    Raises:
        Conflict: the tenant already has a query with this id.
    """
    keep = load_settings().sql.keep_days * 86_400
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(FORGET, [keep])
            connection.execute(
                BEGIN, [tenant.tenant_id, query_id, key_id, sql.replace("\0", "\N{REPLACEMENT CHARACTER}")]
            )
    except psycopg.errors.UniqueViolation as error:
        raise exists(query_id) from error


def exists(query_id: str) -> Conflict:
    """The error for an id that another query of the tenant has."""
    return Conflict("a query with this id exists already", fix="Choose another one", query_id=query_id)


def pinned(tenant: Tenant, query_id: str, snapshots: Mapping[str, int | None]) -> None:
    """Record the snapshots that the query reads."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(PINNED, [Jsonb(dict(snapshots)), query_id])


def end(
    tenant: Tenant,
    query_id: str,
    state: str,
    seconds: float,
    *,
    rows: int | None = None,
    size: int | None = None,
    error: str | None = None,
) -> None:
    """Record the result of a query."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute(END, [state, rows, size, seconds, error, query_id])


def cancel(tenant: Tenant, query_id: str) -> Recorded:
    """Request the cancellation of a query in any process; no effect if it has ended. Raises NotFound."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        recorded = postgres.select(connection, Recorded, CANCEL.format(fields=_fields()), [query_id])
    if not recorded:
        raise NotFound("no such query", fix="List the queries", query_id=query_id)
    return recorded[0]


def cancelled(tenant: Tenant, query_ids: Iterable[str]) -> set[str]:
    """Select those of the queries that were cancelled."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return {row[0] for row in connection.execute(CANCELLED, [list(query_ids)])}


def queries(tenant: Tenant, limit: int, *, running: bool = False) -> list[Recorded]:
    """List the tenant's queries, the latest first.

    Args:
        running: only those that are running.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        listed = postgres.select(connection, Recorded, LIST.format(fields=_fields()), [running, limit])
    return [query for query in listed if query.state == "running" or not running]


def _fields() -> str:
    return FIELDS.format(lost=float(load_settings().sql.seconds) + 60)
