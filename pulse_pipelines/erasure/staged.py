"""Staging tables: dead letters with their payloads, left by attempts at batches.

An attempt drops its tables when it ends, and the next attempt drops those of one that died. Tables of a batch
that settled just before its run died stay until the next batch. Every staged row before the covered offsets
is settled and never read again, so all of the tenant's are deleted, not only the person's.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.ingest import staging
from pulse_resources import postgres

STEP = "staged"

DEAD_LETTERS = "{verb} FROM staging.{table} s WHERE s.tenant_id = %(tenant)s AND {covered}"
COVERED = """
EXISTS (
    SELECT FROM unnest(%(partitions)s::int[], %(ends)s::bigint[]) AS c (partition, below)
    WHERE c.partition = s.partition AND s.event_offset < c.below)
"""


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Delete staged rows of covered events.

    Raises:
        psycopg.OperationalError: run it again.
    """
    staging.drop_settled()
    deleted = sum(_by_table(tenant, subject, "DELETE").values())
    before = erasure.steps.get(STEP, {"deleted": 0})
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        result = {"deleted": before["deleted"] + deleted}
        record.done(connection, tenant, erasure.erasure_id, STEP, result)


def count_events(tenant: Tenant, subject: Subject) -> Mapping[str, int]:
    """Covered events of the tenant by staging table."""
    return _by_table(tenant, subject, "SELECT")


def _by_table(tenant: Tenant, subject: Subject, verb: str) -> dict[str, int]:
    values = {
        "tenant": tenant.tenant_id,
        "partitions": list(subject.covers),
        "ends": list(subject.covers.values()),
    }
    counts: dict[str, int] = {}
    for table in staging.existing():
        with suppress(psycopg.errors.UndefinedTable):  # its attempt has ended
            counts[table] = _of_table(tenant, table, verb, values)
    return counts


def _of_table(tenant: Tenant, table: str, verb: str, values: Mapping[str, Any]) -> int:
    statement = sql.SQL(DEAD_LETTERS).format(
        verb=sql.SQL("DELETE" if verb == "DELETE" else "SELECT 1"),
        table=sql.Identifier(table),
        covered=sql.SQL(COVERED),
    )
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(statement, values).rowcount
