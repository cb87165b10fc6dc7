"""Dead letters of the person: their rows stay, since their offsets are accounted for; what they say goes."""

from collections.abc import Iterator
from typing import NamedTuple

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_resources import postgres
from pulse_resources.faults import fail_point

STEP = "dead_letters"
PAGE = 500
SHOWN = 100
"""Ids of unreadable letters that are named."""

# Those that a backfill landed are rows of the table that it landed them in: they go with these.
LETTERS = """
SELECT partition, event_offset, payload FROM dead_letters
WHERE tenant_id = %s AND resolution IS DISTINCT FROM 'landed' AND payload <> ''
ORDER BY partition, event_offset
"""
ERASE = """
UPDATE dead_letters l SET resolution = 'erased', resolved_at = now(), payload = '', event_id = NULL,
    pointer = NULL, detail = 'erased', published_at = coalesce(published_at, now())
FROM unnest(%s::int[], %s::bigint[]) AS found (partition, event_offset)
WHERE l.tenant_id = %s AND l.partition = found.partition AND l.event_offset = found.event_offset
  AND l.resolution IS DISTINCT FROM 'landed'
"""


class Letters(NamedTuple):
    """Dead letters by what they are to the person; (partition, offset) each."""

    hit: list[tuple[int, int]]
    unreadable: list[tuple[int, int]]
    """No JSON, with the value somewhere in their bytes: for a person to look at."""


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Empty the matching dead letters, in one transaction.

    Raises:
        psycopg.OperationalError: nothing was changed.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        found = search(connection, tenant, subject)
        partitions, offsets = [p for p, _ in found.hit], [o for _, o in found.hit]
        emptied = connection.execute(ERASE, [partitions, offsets, tenant.tenant_id]).rowcount
        ids = [f"{partition}-{offset}" for partition, offset in found.unreadable[:SHOWN]]
        result = {"emptied": emptied, "unreadable": len(found.unreadable), "unreadable_ids": ids}
        record.done(connection, tenant, erasure.erasure_id, STEP, result)
        fail_point("erase.letters.before_commit")


def search(connection: postgres.Connection, tenant: Tenant, subject: Subject) -> Letters:
    """The tenant's dead letters that are the person's, a page in memory at a time."""
    found = Letters([], [])
    for partition, offset, payload in _payloads(connection, tenant):
        if subject.covered(partition, offset) and subject.may_be_in(payload):
            try:
                if subject.is_of(orjson.loads(payload)):
                    found.hit.append((partition, offset))
            except orjson.JSONDecodeError:
                if subject.value.encode() in payload:
                    found.unreadable.append((partition, offset))
    return found


def _payloads(connection: postgres.Connection, tenant: Tenant) -> Iterator[tuple[int, int, bytes]]:
    with connection.cursor(name="letters") as cursor:
        cursor.execute(LETTERS, [tenant.tenant_id])
        while page := cursor.fetchmany(PAGE):
            yield from ((partition, offset, bytes(payload)) for partition, offset, payload in page)
