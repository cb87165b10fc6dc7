"""Staged events: what attempts at batches left in the staging tables: dead letters, with their bytes.

An attempt drops its tables when it ends, the next one those of attempts that died; tables of a batch that
settled just before its run died are left to the next batch. Whatever lies before the covered offsets has
settled, so nobody reads it any more: all of it is deleted, whosever it is.
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
    """Delete what is staged of covered events.

    Raises:
        psycopg.OperationalError: do it again.
    """
    staging.drop_settled()
    deleted = sum(_each(tenant, subject, "DELETE").values())
    before = erasure.steps.get(STEP, {"deleted": 0})
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        result = {"deleted": before["deleted"] + deleted}
        record.done(connection, tenant, erasure.erasure_id, STEP, result)


def left(tenant: Tenant, subject: Subject) -> Mapping[str, int]:
    """By staging table, how many covered events of the tenant it has."""
    return _each(tenant, subject, "SELECT")


def _each(tenant: Tenant, subject: Subject, verb: str) -> dict[str, int]:
    values = {
        "tenant": tenant.tenant_id,
        "partitions": list(subject.covers),
        "ends": list(subject.covers.values()),
    }
    found: dict[str, int] = {}
    for table in staging.existing():
        with suppress(psycopg.errors.UndefinedTable):  # its attempt ended meanwhile
            found[table] = _of_table(tenant, table, verb, values)
    return found


def _of_table(tenant: Tenant, table: str, verb: str, values: Mapping[str, Any]) -> int:
    statement = sql.SQL(DEAD_LETTERS).format(
        verb=sql.SQL("DELETE" if verb == "DELETE" else "SELECT 1"),
        table=sql.Identifier(table),
        covered=sql.SQL(COVERED),
    )
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(statement, values).rowcount
