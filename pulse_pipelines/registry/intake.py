"""Intake: the places of a monthly quota, one for each record, and never more than the quota allows.

The HTTP API reserves places before it publishes. A reservation is returned, to the month in which it was
made, if its event was certainly not written. The reservation of an event that may have been written stays,
and is recorded with the event: sent again, the event already has its place.

The dedup gate holds places for the rows that a batch is to land (see `ingest.quota`), and settle turns them
into `usage`. A row whose event has the API's header uses a place that the API reserved and no row has used
yet, if there is one; every other row takes a new place. So an event counts once, and a producer that forges
the header gains no place.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple
from uuid import UUID

from pulse_pipelines.domain import quota
from pulse_pipelines.domain.quota import EVENTS
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

THIS_MONTH = "date_trunc('month', now() AT TIME ZONE 'UTC')::date"
ROWS = """
coalesce((SELECT records - early FROM usage
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = {month}), 0)
+ coalesce((SELECT early FROM usage
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = ({month} + interval '1 month')::date), 0)
+ coalesce((SELECT sum(records) FROM intake_holds
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = {month}
    AND batch_id IS DISTINCT FROM %(batch)s), 0)::bigint
"""
"""Number of a month's events that have landed, or that batches (except one) are about to land."""
DIRECT = """
coalesce((SELECT direct FROM usage
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = {month}), 0)
+ coalesce((SELECT sum(direct) FROM intake_holds
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = {month}
    AND batch_id IS DISTINCT FROM %(batch)s), 0)::bigint
"""
"""Number of places that such rows took without a reservation of the API."""
PLACES = f"""
SELECT coalesce((SELECT records FROM intake
    WHERE tenant_id = app_tenant() AND kind = %(kind)s AND month = {{month}}), 0) AS reserved,
    {DIRECT} AS direct, {ROWS} AS rows
"""  # noqa: S608 - from constants
OPEN = """
INSERT INTO intake (tenant_id, kind, month, records) VALUES (%(tenant)s, %(kind)s, {month}, 0)
ON CONFLICT DO NOTHING
"""
FORGET_DOUBTS = f"""
DELETE FROM intake_doubts WHERE kind = %(kind)s AND month < ({THIS_MONTH} - interval '1 month')::date
"""  # noqa: S608
LOCK = f"""
SELECT month, EXISTS (SELECT FROM intake_doubts WHERE kind = %(kind)s)
FROM intake WHERE kind = %(kind)s AND month = {THIS_MONTH} FOR UPDATE
"""  # noqa: S608
TAKE = "UPDATE intake SET records = %(reserved)s WHERE kind = %(kind)s AND month = %(month)s"
GIVE_BACK = """
UPDATE intake SET records = greatest(records - %(count)s, 0) WHERE kind = %(kind)s AND month = %(month)s
"""
LOCK_MONTH = "SELECT FROM intake WHERE kind = %(kind)s AND month = %(month)s FOR UPDATE"
HOLD = """
INSERT INTO intake_holds (tenant_id, kind, batch_id, month, records, direct)
VALUES (%(tenant)s, %(kind)s, %(batch)s, %(month)s, %(records)s, %(direct)s)
"""
GIVE_UP = f"""
DELETE FROM intake_holds WHERE kind = %(kind)s AND batch_id = %(batch)s
RETURNING month, CASE WHEN month < {THIS_MONTH} THEN records ELSE 0 END, direct
"""  # noqa: S608
USE_DIRECTLY = """
INSERT INTO usage AS u (tenant_id, month, records, bytes, direct) VALUES (%s, %s, 0, 0, %s)
ON CONFLICT (tenant_id, kind, month) DO UPDATE SET direct = u.direct + EXCLUDED.direct
"""
UNHOLD = "DELETE FROM intake_holds WHERE tenant_id = %s"
DOUBTS = "SELECT event, month FROM intake_doubts WHERE kind = %(kind)s AND event = ANY(%(events)s) FOR UPDATE"
TAKE_DOUBTS = "DELETE FROM intake_doubts WHERE kind = %(kind)s AND event = ANY(%(events)s)"
DOUBT = """
INSERT INTO intake_doubts (tenant_id, kind, event, month)
SELECT %(tenant)s, %(kind)s, event, month
FROM unnest(%(events)s::bytea[], %(months)s::date[]) AS d (event, month)
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Places:
    """Counts of the taken places of a month."""

    reserved: int
    """Places reserved by the API, including other places that were taken when it last reserved."""
    direct: int
    """Places taken by rows of events without a reservation."""
    rows: int

    @property
    def used(self) -> int:
        """Number of taken places; `rows` is larger if there was no quota, or headers were forged."""
        return max(self.reserved + self.direct, self.rows)

    @property
    def open(self) -> int:
        """Places without a row: their events are on their way, duplicates, or dead letters."""
        return max(0, self.reserved + self.direct - self.rows)


class Rows(NamedTuple):
    """Numbers of new rows of a batch."""

    counted: int
    """Rows of events with the header that says that they have a place."""
    others: int


class Reserved(NamedTuple):
    """The place of one event in a month."""

    event: bytes
    """Identifies the event: the same bytes whenever the same event of a dataset is sent."""
    month: date
    doubted: bool
    """Whether an earlier request reserved it for the same event, which may have been written then."""


def reserve(tenant: Tenant, requests: Sequence[Sequence[bytes]], maximum: int) -> list[list[Reserved] | None]:
    """Reserve a place for each event of several requests at once; None for a request that does not fit.

    Exact across processes, by a row lock, and durable before anything is published. Return the reservations
    of unpublished events with `release`; a crash in between loses a few places of the month.
    """
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        month, before, doubts = _lock(connection, values)
        doubted_events = _doubts(connection, values, requests) if doubts else {}
        places = [[_place(event, doubted_events, month) for event in events] for events in requests]
        fresh = [sum(not place.doubted for place in request) for request in places]
        verdicts = quota.admit(before.used, fresh, maximum)
        granted = [place for fits, request in zip(verdicts, places, strict=True) if fits for place in request]
        count = sum(not place.doubted for place in granted)
        if count:
            _take(connection, values, month, before, count)
        if count < len(granted):
            connection.execute(TAKE_DOUBTS, values | {"events": [p.event for p in granted if p.doubted]})
    return [request if fits else None for fits, request in zip(verdicts, places, strict=True)]


def release(tenant: Tenant, reserved: Sequence[Reserved], sent: int) -> None:
    """Return the reservations of events that were not written, after a request that was not acknowledged.

    Args:
        reserved: for each event of the request, in its order.
        sent: number of the first events that were sent, and may have been written.
    """
    never = [place for place in reserved[sent:] if not place.doubted]
    doubtful = [*reserved[:sent], *(place for place in reserved[sent:] if place.doubted)]
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute("SET LOCAL synchronous_commit = off")  # losing it only loses places of the month
        for month, count in sorted(Counter(place.month for place in never).items()):
            connection.execute(GIVE_BACK, values | {"month": month, "count": count})
        if doubtful:
            events, months = [place.event for place in doubtful], [place.month for place in doubtful]
            connection.execute(DOUBT, values | {"events": events, "months": months})


def hold(
    connection: postgres.Connection, tenant_id: UUID, batch: str, requested: Mapping[date, Rows], maximum: int
) -> dict[date, Rows]:
    """Hold places for the rows of a batch, in place of those that an earlier attempt held.

    Args:
        connection: in a transaction for this alone, in the tenant's session.
        requested: rows by the month in which their events were received.
        maximum: the quota of a month.

    Returns:
        The rows that have a place, by month.
    """
    common = {"tenant": tenant_id, "kind": EVENTS, "batch": batch}
    connection.execute(GIVE_UP, common)
    granted = {}
    for month, rows in sorted(requested.items()):
        values = common | {"month": month}
        connection.execute(OPEN.format(month="%(month)s"), values)
        connection.execute(LOCK_MONTH, values)
        places = _places(connection, values, "%(month)s::date")
        free = max(0, maximum - places.used)
        counted = min(rows.counted, places.open + free)
        beyond = max(0, counted - places.open)
        uncounted = min(rows.others, free - beyond)
        connection.execute(HOLD, values | {"records": counted + uncounted, "direct": beyond + uncounted})
        granted[month] = Rows(counted, uncounted)
    return granted


def settle(connection: postgres.Connection, tenant_id: UUID, batch: str) -> int:
    """Release the places that a batch held, in the transaction that commits its rows.

    Returns:
        The number of these rows that count in a month before this one.
    """
    rows = connection.execute(GIVE_UP, {"kind": EVENTS, "batch": batch}).fetchall()
    for month, _, direct in sorted(rows):
        if direct:
            connection.execute(USE_DIRECTLY, [tenant_id, month, direct])
    return sum(early for _, early, _ in rows)


def unhold(connection: postgres.Connection, tenant_id: UUID) -> None:
    """Release the places of all batches of a tenant that was taken out of them."""
    connection.execute(UNHOLD, [tenant_id])


def places_used(connection: postgres.Connection) -> int:
    """The number of places of this month that the session's tenant has taken."""
    return _places(connection, {"kind": EVENTS}, THIS_MONTH).used


def take(connection: postgres.Connection, tenant: Tenant, count: int, maximum: int) -> None:
    """Take `count` places of this month, or as many as are left, for events that were published."""
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    month, before, _ = _lock(connection, values)
    _take(connection, values, month, before, max(0, min(count, maximum - before.used)))


def this_month(connection: postgres.Connection) -> date:
    """The first day of this month, in UTC."""
    ((month,),) = connection.execute(f"SELECT {THIS_MONTH}").fetchall()
    first_day: date = month
    return first_day


def _lock(connection: postgres.Connection, values: dict[str, object]) -> tuple[date, Places, bool]:
    """Lock this month; returns it, its taken places, and whether the tenant has doubted reservations."""
    row = connection.execute(LOCK, values).fetchone()
    if row is None:
        connection.execute(OPEN.format(month=THIS_MONTH), values)
        (row,) = connection.execute(LOCK, values).fetchall()
    month, doubts = row
    return month, _places(connection, values | {"month": month}, "%(month)s::date"), doubts


def _places(connection: postgres.Connection, values: dict[str, object], month: str) -> Places:
    """Count places, in a separate statement after the month is locked, which then sees the latest state."""
    query = PLACES.format(month=month)
    (places,) = postgres.select(connection, Places, query, {"batch": None} | values)
    return places


def _take(
    connection: postgres.Connection, values: dict[str, object], month: date, before: Places, count: int
) -> None:
    reserved = before.used + count - before.direct
    connection.execute(TAKE, values | {"month": month, "reserved": reserved})


def _doubts(
    connection: postgres.Connection, values: dict[str, object], requests: Sequence[Sequence[bytes]]
) -> dict[bytes, date]:
    connection.execute(FORGET_DOUBTS, values)
    events = [event for request in requests for event in request]
    rows = connection.execute(DOUBTS, values | {"events": events})
    return {bytes(event): month for event, month in rows}


def _place(event: bytes, doubted_events: dict[bytes, date], month: date) -> Reserved:
    doubted = doubted_events.pop(event, None)  # of several with one id the first
    return Reserved(event, doubted or month, doubted is not None)
