"""Record of an erasure: its plan, written before any data is touched, and each step's result.

A process that dies leaves an unfinished record. The same command finds it by the hash of the value and
resumes: every step runs again and adds what it finds to the recorded result.
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
    """An erasure, as stored in Postgres."""

    erasure_id: str
    dataset_id: UUID
    slug: str
    field: str
    salt: bytes
    value_hash: bytes
    covers: Mapping[int, int]
    """By partition: the first offset that was unsettled when the erasure began."""
    steps: Mapping[str, Any]
    """Results of each step so far."""
    started_at: datetime
    finished_at: datetime | None

    def is_of(self, value: str) -> bool:
        """Whether the erasure was made with this value."""
        return secrets.compare_digest(_hash(self.salt, value), self.value_hash)


def begin(tenant: Tenant, subject: Subject) -> Erasure:
    """The unfinished erasure of this subject, or a new one that covers everything settled so far."""
    dataset = subject.dataset
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = [tenant.tenant_id, dataset.dataset_id, subject.name]
        for erasure in _select(connection, UNFINISHED, values):
            if erasure.is_of(subject.value):
                return erasure
        erasure_id, salt = secrets.token_hex(8), secrets.token_bytes(16)
        covers = dict(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())
        values = [tenant.tenant_id, erasure_id, dataset.dataset_id, dataset.slug, subject.name, salt]
        connection.execute(BEGIN, [*values, _hash(salt, subject.value), Jsonb(covers)])
    return find(tenant, erasure_id)


def settled(tenant: Tenant, dataset: Dataset) -> Mapping[int, int]:
    """First unsettled offset by partition: the events that an erasure which begins now covers."""
    with postgres.tenant_transaction("pulse_pipeline", dataset.tenant_id) as connection:
        return dict(connection.execute(POSITIONS, [tenant.tenant_id]).fetchall())


def find(tenant: Tenant, erasure_id: str) -> Erasure:
    """Read an erasure of the tenant.

    Raises:
        NotFound: the tenant has no erasure with this id.
    """
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        erasures = _select(connection, FIND, [tenant.tenant_id, erasure_id])
    if not erasures:
        raise NotFound("no such erasure", tenant=tenant.slug, erasure=erasure_id)
    return erasures[0]


def done(connection: postgres.Connection, tenant: Tenant, erasure_id: str, step: str, result: object) -> None:
    """Record a step's result, in the transaction that carries the step out."""
    connection.execute(STEP, [step, Jsonb(result), tenant.tenant_id, erasure_id])


def finish(tenant: Tenant, erasure_id: str, remains: object, verified: object) -> Erasure:
    """Mark the erasure as finished, with the verified stores and the copies that remain elsewhere."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(FINISH, [Jsonb(remains), Jsonb(verified), tenant.tenant_id, erasure_id])
    return find(tenant, erasure_id)


def _select(connection: postgres.Connection, query: str, values: list[object]) -> list[Erasure]:
    erasures = postgres.select(connection, Erasure, query, values)
    return [
        replace(erasure, covers={int(p): end for p, end in erasure.covers.items()}) for erasure in erasures
    ]


def _hash(salt: bytes, value: str) -> bytes:
    # Slow on purpose: a copy of the database must not reveal customer numbers to enumeration.
    return hashlib.scrypt(value.encode(), salt=salt, n=2**14, r=8, p=1)
