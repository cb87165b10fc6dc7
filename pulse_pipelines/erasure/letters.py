"""Dead letters of the person: payload and id are erased, the rows stay to account for their offsets."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_resources import postgres
from pulse_resources.process.faults import fail_point

STEP = "dead_letters"
PAGE = 500
SHOWN = 100
"""Unreadable dead letters that are named, at most."""

ERASED_COLUMNS = """payload = '', event_id = NULL, pointer = NULL, detail = 'erased',
    published_at = coalesce(l.published_at, now())"""
"""Columns of an erased dead letter; it is no longer published."""

LETTERS = """
SELECT partition, event_offset, payload FROM dead_letters
WHERE tenant_id = %s AND payload <> '' ORDER BY partition, event_offset
"""
# A dead letter that a backfill landed, but whose row the rows step did not find, is of a deleted dataset: it
# stays landed in the ledger. Rows are locked in the same order everywhere, which prevents deadlocks.
EMPTY = f"""
WITH found AS (
    SELECT l.partition, l.event_offset, l.resolution FROM dead_letters l
    JOIN unnest(%(partitions)s::int[], %(offsets)s::bigint[]) AS w (partition, event_offset)
        USING (partition, event_offset)
    WHERE l.tenant_id = %(tenant)s ORDER BY l.partition, l.event_offset FOR UPDATE OF l)
UPDATE dead_letters l SET {ERASED_COLUMNS},
    resolution = CASE WHEN found.resolution = 'landed' THEN 'landed' ELSE 'erased' END,
    resolved_at = CASE WHEN found.resolution = 'landed' THEN l.resolved_at ELSE now() END
FROM found
WHERE l.tenant_id = %(tenant)s AND l.partition = found.partition AND l.event_offset = found.event_offset
RETURNING found.resolution
"""  # noqa: S608 - from constants


@dataclass
class Letters:
    """Dead letters by whether they are the person's; (partition, offset) each."""

    hit: list[tuple[int, int]] = field(default_factory=list)
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    """Not JSON, but the value occurs in the bytes: an operator has to look at them."""
    searched: int = 0
    """Dead letters of the tenant that have a payload."""


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Erase the content of matching dead letters, whatever their resolution, in one transaction.

    Raises:
        psycopg.OperationalError: nothing was changed.
    """
    before = erasure.steps.get(STEP, {})
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        matches = search(connection, tenant, subject)
        places = {"partitions": [p for p, _ in matches.hit], "offsets": [o for _, o in matches.hit]}
        emptied = connection.execute(EMPTY, places | {"tenant": tenant.tenant_id}).fetchall()
        replayed = sum(resolution == "replayed" for (resolution,) in emptied)
        result = {
            "emptied": before.get("emptied", 0) + len(emptied),
            "replayed": before.get("replayed", 0) + replayed,
            "unreadable": len(matches.unreadable),
            "unreadable_ids": [f"{partition}-{offset}" for partition, offset in matches.unreadable[:SHOWN]],
        }
        record.done(connection, tenant, erasure.erasure_id, STEP, result)
        fail_point("erase.letters.before_commit")


def search(connection: postgres.Connection, tenant: Tenant, subject: Subject) -> Letters:
    """Find the tenant's dead letters that are the person's; one page is in memory at a time."""
    letters = Letters()
    for partition, offset, payload in _payloads(connection, tenant):
        letters.searched += 1
        if subject.covered(partition, offset) and subject.may_be_in(payload):
            try:
                if subject.is_of(orjson.loads(payload)):
                    letters.hit.append((partition, offset))
            except orjson.JSONDecodeError:
                if subject.value.encode() in payload:
                    letters.unreadable.append((partition, offset))
    return letters


def _payloads(connection: postgres.Connection, tenant: Tenant) -> Iterator[tuple[int, int, bytes]]:
    with connection.cursor(name="letters") as cursor:
        cursor.execute(LETTERS, [tenant.tenant_id])
        while page := cursor.fetchmany(PAGE):
            yield from ((partition, offset, bytes(payload)) for partition, offset, payload in page)
