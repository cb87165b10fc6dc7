"""Requests that named themselves: one that comes again, as its answer was lost, is not carried out again.

What a request did and that it was carried out are committed together. The answer is not kept, it has keys in
it: whoever asks again gets one made anew. A request that was refused is judged again.
"""

from dataclasses import dataclass

import psycopg

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake.catalog import ROLE
from pulse_pipelines.lake.errors import KeyReused
from pulse_resources import postgres

KEPT = "PT1H"
"""How long a request is known by its name (ISO 8601; clients are told)."""
SEEN = "SELECT asked FROM lake_requests WHERE request_key = %s"
FORGET = f"DELETE FROM lake_requests WHERE at < now() - interval '{KEPT}'"  # noqa: S608 - a constant
RECORD = "INSERT INTO lake_requests (tenant_id, request_key, asked) VALUES (app_tenant(), %s, %s)"


class Repeated(Exception):  # noqa: N818 - no error: the answer is what there is now
    """This very request was carried out before."""


@dataclass(frozen=True)
class Once:
    """A request that changes something.

    Args:
        key: that the client gave it; None: it gave none.
        asked: a digest of all that it says.
    """

    key: str | None = None
    asked: str = ""

    def check(self, tenant: Tenant) -> None:
        """Raises Repeated if it was carried out, KeyReused if another one was by this key."""
        if self.key is not None:
            with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
                self._judge(connection)

    def record(self, connection: postgres.Connection) -> None:
        """Note in the transaction that carries it out that it was. Raises as `check`."""
        if self.key is None:
            return
        self._judge(connection)
        connection.execute(FORGET)
        try:
            with connection.transaction():
                connection.execute(RECORD, [self.key, self.asked])
        except psycopg.errors.UniqueViolation:  # at the same time
            self._judge(connection)

    def seen(self, tenant: Tenant) -> bool:
        """Whether it was carried out: asked when the answer to COMMIT was lost."""
        with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
            return self.key is not None and bool(connection.execute(SEEN, [self.key]).fetchone())

    def _judge(self, connection: postgres.Connection) -> None:
        row = connection.execute(SEEN, [self.key]).fetchone()
        if row is None:
            return
        if row[0] != self.asked:
            raise KeyReused("the Idempotency-Key was used for another request")
        raise Repeated
