"""The record of an erasure: planned before anything is touched, and what each step did, written with it.

A process that dies leaves an unfinished record; the same command finds it by the value's hash and goes on:
every step is done again, and what it finds then is added to what it had done.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure.subject import Subject
from pulse_resources import postgres
from pulse_resources.errors import NotFound

POSITIONS = "SELECT partition, settled_offset FROM ingest_positions WHERE tenant_id = %s ORDER BY partition"
BEGIN = """
INSERT INTO erasures (tenant_id, erasure_id, dataset_id, slug, field, salt, value_hash, covers)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
FIELDS = "erasure_id, dataset_id, slug, field, salt, value_hash, covers, steps, started_at, finished_at"
UNFINISHED = f"""
SELECT {FIELDS} FROM erasures
WHERE tenant_id = %s AND dataset_id = %s AND field = %s AND finished_at IS NULL ORDER BY started_at
"""  # noqa: S608 - from constants
FIND = f"SELECT {FIELDS} FROM erasures WHERE tenant_id = %s AND erasure_id = %s"  # noqa: S608
STEP = """
UPDATE erasures SET steps = steps || jsonb_build_object(%s::text, %s::jsonb)
WHERE tenant_id = %s AND erasure_id = %s
"""
FINISH = """
UPDATE erasures SET finished_at = now(),
    steps = steps || jsonb_build_object('remains', %s::jsonb, 'verified', %s::jsonb)
WHERE tenant_id = %s AND erasure_id = %s
"""


@dataclass(frozen=True)
class Erasure:
    """An erasure as Postgres remembers it."""

    erasure_id: str
    dataset_id: UUID
    slug: str
    field: str
    salt: bytes
    value_hash: bytes
    covers: Mapping[int, int]
    """By partition: the first offset that was not settled when it began."""
    steps: Mapping[str, Any]
    """What each step has done so far."""
    started_at: datetime
    finished_at: datetime | None

    def is_of(self, value: str) -> bool:
        """Whether this is the value that it was made with."""
        return secrets.compare_digest(_hash(self.salt, value), self.value_hash)


def begin(tenant: Tenant, subject: Subject) -> Erasure:
    """The unfinished erasure of this subject, or a new one that covers all that is settled by now."""
    dataset = subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = [tenant.tenant_id, dataset.dataset_id, subject.name]
        for found in map(_erasure, connection.execute(UNFINISHED, values)):
            if found.is_of(subject.value):
                return found
        erasure_id, salt = secrets.token_hex(8), secrets.token_bytes(16)
        covers = dict(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())
        values = [tenant.tenant_id, erasure_id, dataset.dataset_id, dataset.slug, subject.name, salt]
        connection.execute(BEGIN, [*values, _hash(salt, subject.value), Jsonb(covers)])
    return find(tenant, erasure_id)


def settled(tenant: Tenant, dataset: Dataset) -> Mapping[int, int]:
    """By partition, the offset up to which everything is settled: what an erasure that begins now covers."""
    with postgres.tenant_transaction("pulse_pipeline", dataset.tenant_id) as connection:
        return dict(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())


def find(tenant: Tenant, erasure_id: str) -> Erasure:
    """An erasure of the tenant.

    Raises:
        NotFound: it has none with this id.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        row = connection.execute(FIND, [tenant.tenant_id, erasure_id]).fetchone()
    if row is None:
        raise NotFound("no such erasure", tenant=tenant.slug, erasure=erasure_id)
    return _erasure(row)


def done(connection: postgres.Connection, tenant: Tenant, erasure_id: str, step: str, result: object) -> None:
    """Write what a step did, in the transaction that does it."""
    connection.execute(STEP, [step, Jsonb(result), tenant.tenant_id, erasure_id])


def finish(tenant: Tenant, erasure_id: str, remains: object, verified: object) -> Erasure:
    """Write that nothing is left, where that was looked for, and what remains elsewhere."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(FINISH, [Jsonb(remains), Jsonb(verified), tenant.tenant_id, erasure_id])
    return find(tenant, erasure_id)


def _erasure(row: Any) -> Erasure:
    found = Erasure(*row)
    return replace(found, covers={int(partition): end for partition, end in found.covers.items()})


def _hash(salt: bytes, value: str) -> bytes:
    # Slow on purpose: who has the database alone must not find a customer number by counting.
    return hashlib.scrypt(value.encode(), salt=salt, n=2**14, r=8, p=1)
