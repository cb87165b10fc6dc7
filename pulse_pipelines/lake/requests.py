"""Idempotency keys of catalog requests: a repeat, after a lost answer, is not carried out again.

A request's effect and its key are committed together. The answer is not stored, since it contains keys of the
object store: a repeat gets a new one. A request that was refused is checked again when it is repeated.
"""

from dataclasses import dataclass

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.catalog import ROLE
from pulse_pipelines.lake.errors import KeyReused
from pulse_resources import postgres

RETENTION = "PT1H"
"""How long an idempotency key is remembered (ISO 8601; in the configuration for clients)."""
RECORDED = "SELECT asked FROM lake_requests WHERE request_key = %s"
FORGET = f"DELETE FROM lake_requests WHERE at < now() - interval '{RETENTION}'"  # noqa: S608 - a constant
RECORD = "INSERT INTO lake_requests (tenant_id, request_key, asked) VALUES (app_tenant(), %s, %s)"


class Repeated(Exception):  # noqa: N818 - no error: the answer is what there is now
    """This request was carried out before."""


@dataclass(frozen=True)
class Once:
    """A request that changes something, with its idempotency key.

    Args:
        key: from the client; None: it sent none.
        request_digest: of the whole request.
    """

    key: str | None = None
    request_digest: str = ""

    def check(self, tenant: Tenant) -> None:
        """Raise Repeated if it was carried out, KeyReused if another request used this key."""
        if self.key is not None:
            with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
                self._check_recorded(connection)

    def record(self, connection: postgres.Connection) -> None:
        """Record the request in the transaction that carries it out. Raises as `check`."""
        if self.key is None:
            return
        self._check_recorded(connection)
        connection.execute(FORGET)
        try:
            with connection.transaction():
                connection.execute(RECORD, [self.key, self.request_digest])
        except psycopg.errors.UniqueViolation:  # a concurrent repeat
            self._check_recorded(connection)

    def _check_recorded(self, connection: postgres.Connection) -> None:
        row = connection.execute(RECORDED, [self.key]).fetchone()
        if row is None:
            return
        if row[0] != self.request_digest:
            raise KeyReused("the Idempotency-Key was used for another request")
        raise Repeated
