"""Deliveries: the runs of pipes with a sink, as rows, and how far each sink has confirmed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from psycopg.types.json import Jsonb

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import progress
from pulse_pipelines.pipes.turns import Turn
from pulse_resources import postgres
from pulse_resources.errors import Conflict

BEGIN = """
INSERT INTO pipe_deliveries (tenant_id, pipe) VALUES (%s, %s) RETURNING delivery_id
"""
# Deliveries of runs that have died; and those that are too old to be of interest.
ABANDON = """
UPDATE pipe_deliveries SET state = 'failed', ended_at = now(), reason = 'its run ended before its end'
WHERE pipe = %s AND state = 'running'
"""
FORGET = "DELETE FROM pipe_deliveries WHERE pipe = %s AND begun_at < now() - interval '30 days'"
END = """
UPDATE pipe_deliveries SET state = %s, reason = %s, ended_at = now() WHERE delivery_id = %s
"""
STATE = "SELECT confirmed, anew_after FROM pipes WHERE tenant_id = %s AND pipe = %s"
# Only from what this run has seen last: another one may be under way whose lock this one has lost.
CONFIRM = """
UPDATE pipes SET confirmed = %(new)s WHERE pipe = %(pipe)s AND confirmed IS NOT DISTINCT FROM %(old)s::jsonb
"""
COUNT = """
UPDATE pipe_deliveries SET versions = versions + %(versions)s, upserted = upserted + %(upserted)s,
    deleted = deleted + %(deleted)s, refused = refused + %(refused)s, is_full = is_full OR %(is_full)s
WHERE delivery_id = %(delivery)s
"""
GAVE_WAY = "another tenant's pipe waited for its place: the next run continues"
NAMED = 5
"""Most entities that a run names of those that cannot be written."""
LIST = """
SELECT delivery_id, state, is_full, versions, upserted, deleted, refused, begun_at, ended_at, reason
FROM pipe_deliveries WHERE pipe = %s ORDER BY delivery_id DESC LIMIT %s
"""


@dataclass(frozen=True)
class Delivery:
    """A run of a pipe with a sink, as people see it."""

    delivery_id: int
    state: str
    """running, done or failed."""
    is_full: bool
    """Whether it copied all entities, and deleted those that are missing."""
    versions: int
    upserted: int
    deleted: int
    refused: int
    begun_at: datetime
    ended_at: datetime | None
    reason: str | None


@dataclass(frozen=True)
class Counts:
    """Counts of versions by outcome."""

    versions: int = 0
    """That were read; of each entity only the newest of a batch is written."""
    upserted: int = 0
    deleted: int = 0
    refused: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


class Request(NamedTuple):
    """A request of a chain, before its answer is known."""

    request: str
    until: int
    """Place in the log up to which it brings the versions."""
    is_last: bool


@dataclass(frozen=True)
class Chain:
    """A chain of requests that has not ended."""

    sequence: str
    is_full: bool
    previous: str | None = None
    """The request that was answered for last."""
    sent: Request | None = None
    """The request that may be on its way."""


@dataclass(frozen=True)
class Confirmed:
    """How far a sink has confirmed the versions that it received."""

    epoch: int
    """Epoch of the pipe: `reset` begins another one."""
    generation: int
    updated: int
    chain: Chain | None = None

    @classmethod
    def parse(cls, stored: dict[str, Any]) -> "Confirmed":
        """As it is stored."""
        chain = stored.get("chain")
        if chain:
            sent = chain["sent"]
            chain = Chain(**chain | {"sent": Request(*sent) if sent else None})
        return cls(stored["epoch"], stored["generation"], stored["updated"], chain or None)


@dataclass
class Run:
    """A run that is under way."""

    tenant: Tenant
    pipe: str
    delivery_id: int
    epoch: int
    confirmed: Confirmed | None
    counts: Counts = field(default_factory=Counts)
    is_full: bool = False
    turn: Turn | None = None
    gave_way: bool = False
    """Whether it has ended before its end, for another tenant's run."""
    remark: str | None = None
    """A remark for people on a run that was done."""

    def gives_way(self) -> bool:
        """Whether to end now, so that the next run continues."""
        self.gave_way = self.turn is not None and self.turn.gives_way
        return self.gave_way

    def note_refused(self, refused: Sequence[tuple[str, str]]) -> None:
        """Note the entities that cannot be written: their ids, and why."""
        if refused:
            named = "; ".join(f"{key[:100]}: {why}" for key, why in refused[:NAMED])
            subject = "1 entity is" if len(refused) == 1 else f"{len(refused):,} entities are"
            self.remark = f"{subject} set aside, and tried again by each run: {named}"[:2_000]

    def confirm(self, confirmed: Confirmed, counts: Counts | None = None) -> None:
        """Record how far the sink is, and the outcomes of versions.

        Raises:
            Conflict: another run has recorded something meanwhile, or the pipe was deleted.
        """
        counts = counts or Counts()
        old, new = (None if state is None else Jsonb(asdict(state)) for state in (self.confirmed, confirmed))
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            if connection.execute(CONFIRM, {"new": new, "old": old, "pipe": self.pipe}).rowcount != 1:
                raise Conflict(
                    "another run of the pipe is under way, or it was deleted",
                    tenant=self.tenant.slug,
                    pipe=self.pipe,
                )
            values = asdict(counts) | {"is_full": self.is_full, "delivery": self.delivery_id}
            connection.execute(COUNT, values)
        self.confirmed, self.counts = confirmed, self.counts + counts

    def without_chain(self) -> None:
        """Forget the chain of requests: the next request starts another one."""
        if self.confirmed is not None:
            self.confirm(replace(self.confirmed, epoch=-1, chain=None))


@contextmanager
def recorded_run(tenant: Tenant, pipe: str) -> Iterator[Run]:
    """Record a run of a pipe for as long as the block runs, and how it ends."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(ABANDON, [pipe])
        connection.execute(FORGET, [pipe])
        progress.begin(connection, pipe)
        ((number,),) = connection.execute(BEGIN, [tenant.tenant_id, pipe]).fetchall()
        ((stored, epoch),) = connection.execute(STATE, [tenant.tenant_id, pipe]).fetchall()
    run = Run(tenant, pipe, number, epoch, Confirmed.parse(stored) if stored else None)
    try:
        yield run
    except Exception as error:
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            connection.execute(END, ["failed", progress.failed(connection, pipe, error), number])
        raise
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        state, why = ("failed", GAVE_WAY) if run.gave_way else ("done", run.remark)
        connection.execute(END, [state, why, number])
        (progress.request_next if run.gave_way else progress.ended)(connection, pipe)
        if run.remark:
            progress.remark(connection, pipe, run.remark)


def list_deliveries(tenant: Tenant, pipe: str, limit: int) -> list[Delivery]:
    """The latest runs of a pipe, the latest first."""
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        return postgres.select(connection, Delivery, LIST, [pipe, limit])
