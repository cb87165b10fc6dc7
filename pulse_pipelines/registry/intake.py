"""Intake: records of a month, reserved before they are published, and never more than the quota allows.

A reservation is given back where its event certainly was not written, and to the month that it was made in.
That of an event which may have been written stays and is remembered with the event: sent again, the event
has its place already.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from pulse_pipelines.domain import quota
from pulse_pipelines.domain.quota import EVENTS
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

THIS_MONTH = "date_trunc('month', now() AT TIME ZONE 'UTC')::date"
# A month that follows a counted one begins with nothing: what was accepted before midnight and lands after
# it has its place there. The first month that is counted begins with what has landed in it.
OPENING = f"""
CASE WHEN EXISTS (SELECT FROM intake
        WHERE kind = %(kind)s AND month = ({THIS_MONTH} - interval '1 month')::date) THEN 0
    ELSE coalesce((SELECT records FROM usage WHERE kind = %(kind)s AND month = {THIS_MONTH}), 0) END
"""  # noqa: S608 - from a constant
OPEN = f"""
INSERT INTO intake (tenant_id, kind, month, records)
SELECT %(tenant)s, %(kind)s, {THIS_MONTH}, {OPENING} ON CONFLICT DO NOTHING
"""
FORGET_DOUBTS = f"""
DELETE FROM intake_doubts WHERE kind = %(kind)s AND month < ({THIS_MONTH} - interval '1 month')::date
"""  # noqa: S608
LOCK = f"""
SELECT month, records, EXISTS (SELECT FROM intake_doubts WHERE kind = %(kind)s)
FROM intake WHERE kind = %(kind)s AND month = {THIS_MONTH} FOR UPDATE
"""  # noqa: S608
ADD = """
UPDATE intake SET records = greatest(records + %(count)s, 0) WHERE kind = %(kind)s AND month = %(month)s
"""
DOUBTS = "SELECT event, month FROM intake_doubts WHERE kind = %(kind)s AND event = ANY(%(events)s) FOR UPDATE"
TAKE_DOUBTS = "DELETE FROM intake_doubts WHERE kind = %(kind)s AND event = ANY(%(events)s)"
DOUBT = """
INSERT INTO intake_doubts (tenant_id, kind, event, month)
SELECT %(tenant)s, %(kind)s, event, month
FROM unnest(%(events)s::bytea[], %(months)s::date[]) AS d (event, month)
ON CONFLICT DO NOTHING
"""


class Reserved(NamedTuple):
    """The place of one event in a month."""

    event: bytes
    """Who has it: the same bytes for the same event of a dataset, however often it is sent."""
    month: date
    doubted: bool
    """An earlier request had it for the same event, which may have been written then."""


def reserve(tenant: Tenant, asked: Sequence[Sequence[bytes]], maximum: int) -> list[list[Reserved] | None]:
    """Reserve a place for each event of several requests at once; None for a request that does not fit.

    Exact however many processes ask: a row lock orders them. It is on disk before anything is published. What
    is then not published is given back with `release`; a crash in between makes the month a little shorter.
    """
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        month, used, doubts = _lock(connection, values)
        known = _doubts(connection, values, asked) if doubts else {}
        places = [[_place(event, known, month) for event in events] for events in asked]
        fresh = [sum(not place.doubted for place in request) for request in places]
        verdicts = quota.admit(used, fresh, maximum)
        taken = [place for fits, request in zip(verdicts, places, strict=True) if fits for place in request]
        count = sum(not place.doubted for place in taken)
        if count:
            connection.execute(ADD, values | {"month": month, "count": count})
        if count < len(taken):
            connection.execute(TAKE_DOUBTS, values | {"events": [p.event for p in taken if p.doubted]})
    return [request if fits else None for fits, request in zip(verdicts, places, strict=True)]


def release(tenant: Tenant, reserved: Sequence[Reserved], sent: int) -> None:
    """Undo a reservation as far as nothing was written, after a request that was not acknowledged.

    Args:
        reserved: for each event of the request, in its order.
        sent: the first so many of them were sent, and may have been written.
    """
    never = [place for place in reserved[sent:] if not place.doubted]
    doubtful = [*reserved[:sent], *(place for place in reserved[sent:] if place.doubted)]
    values = {"tenant": tenant.tenant_id, "kind": EVENTS}
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        connection.execute("SET LOCAL synchronous_commit = off")  # lost, it makes the month shorter
        for month, count in sorted(Counter(place.month for place in never).items()):
            connection.execute(ADD, values | {"month": month, "count": -count})
        if doubtful:
            events, months = [place.event for place in doubtful], [place.month for place in doubtful]
            connection.execute(DOUBT, values | {"events": events, "months": months})


def _lock(connection: postgres.Connection, values: dict[str, object]) -> tuple[date, int, bool]:
    """The month, its count, and whether the tenant has events in doubt."""
    row = connection.execute(LOCK, values).fetchone()
    if row is None:
        connection.execute(OPEN, values)
        connection.execute(FORGET_DOUBTS, values)
        ((month, used, doubts),) = connection.execute(LOCK, values).fetchall()
        return month, used, doubts
    return row[0], row[1], row[2]


def _doubts(
    connection: postgres.Connection, values: dict[str, object], asked: Sequence[Sequence[bytes]]
) -> dict[bytes, date]:
    events = [event for request in asked for event in request]
    found = connection.execute(DOUBTS, values | {"events": events})
    return {bytes(event): month for event, month in found}


def _place(event: bytes, known: dict[bytes, date], month: date) -> Reserved:
    doubted = known.pop(event, None)  # of several with one id the first
    return Reserved(event, doubted or month, doubted is not None)
