"""Status: lag, freshness and health of all tenants, from a handful of queries.

The cost grows with tenants, pipes and open dead letters, not with history. Services that do not answer are
listed instead of raised: status matters most during an outage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException

from pulse_pipelines import pipes
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import plan
from pulse_pipelines.ingest.plan import Alarm
from pulse_pipelines.pipes import LastDay, Pipe
from pulse_resources import postgres
from pulse_resources.errors import first_line

QUANTILES = (0.5, 0.95, 0.99)
RECENT = 100
"""Number of latest settled batches from which latencies are computed."""

TOTALS = """
SELECT t.tenant_id, t.slug, coalesce(sum(p.landed), 0)::bigint, coalesce(sum(p.duplicates), 0)::bigint,
    coalesce(sum(p.dead_letters), 0)::bigint
FROM pdm_tenants t LEFT JOIN ingest_positions p USING (tenant_id) GROUP BY 1, 2 ORDER BY 2
"""
# The last range of each partition; the ranges that settled together last are the tenant's latest batch.
# Returns how long it took and how long ago it settled.
FRESHNESS = """
SELECT tenant_id, extract(epoch FROM last - min(oldest_received))::float8,
    extract(epoch FROM now() - last)::float8
FROM (
    SELECT p.tenant_id, r.settled_at, r.oldest_received, max(r.settled_at) OVER (PARTITION BY tenant_id) last
    FROM ingest_positions p CROSS JOIN LATERAL (
        SELECT settled_at, oldest_received FROM ingest_ranges i
        WHERE i.tenant_id = p.tenant_id AND i.partition = p.partition AND i.settled_at IS NOT NULL
        ORDER BY i.start_offset DESC LIMIT 1) r
) latest
WHERE settled_at = last AND oldest_received IS NOT NULL GROUP BY tenant_id, last
"""
WAITING = """
SELECT r.tenant_id, extract(epoch FROM now() - min(b.planned_at))::float8
FROM ingest_batches b JOIN ingest_ranges r USING (batch_id)
WHERE b.state <> 'settled' AND r.settled_at IS NULL GROUP BY r.tenant_id
"""
OPEN_LETTERS = "SELECT reason, count(*) FROM dead_letters WHERE resolution IS NULL GROUP BY reason"
BATCHES = "SELECT state, count(*) FROM ingest_batches WHERE state <> 'settled' GROUP BY state"
LATENCIES = """
SELECT percentile_cont(%(quantiles)s::float8[]) WITHIN GROUP (ORDER BY settle_seconds),
    percentile_cont(%(quantiles)s::float8[]) WITHIN GROUP (ORDER BY commit_seconds)
FROM (
    SELECT settle_seconds, commit_seconds FROM ingest_batches
    WHERE state = 'settled' ORDER BY settled_at DESC LIMIT %(recent)s
) recent
"""
OUTBOX = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(settled_at)), 0)::float8 FROM dead_letter_outbox
"""


@dataclass(frozen=True)
class TenantStatus:
    tenant: Tenant
    landed: int
    """Rows of all time; the next two likewise."""
    duplicates: int
    dead_letters: int
    freshness_seconds: float | None
    """Seconds of the latest settled batch, from its oldest event's append until it could be queried."""
    waiting_seconds: float | None
    """Since the oldest open batch with events of this tenant was planned; None: there is none."""
    dead_letters_open: Mapping[str, int]
    """Open dead letters by reason."""
    lag_events: int | None = None
    """Events in its topic that are not settled; None when the broker does not answer."""


@dataclass(frozen=True)
class Status:
    tenants: tuple[TenantStatus, ...] = ()
    """Sorted by slug."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Planned, running and stuck batches."""
    settle_seconds: Mapping[float, float] = field(default_factory=dict)
    """Settle-stage durations of the last `RECENT` batches, by quantile; empty before the first."""
    commit_seconds: Mapping[float, float] = field(default_factory=dict)
    """Durations of each batch's slowest transaction, likewise."""
    outbox_batches: int = 0
    """Batches of tenants whose dead letters may not all be published yet ..."""
    outbox_seconds: float = 0.0
    """... and the time since the first of them settled."""
    pipes: tuple[tuple[Pipe, LastDay], ...] = ()
    """Each with what became of the entities of its last day."""
    alarms: tuple[Alarm, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Services (`postgres`, `kafka`) that did not answer, with the error; their values are missing above."""


def gather() -> Status:
    """Collect the status now. Does not raise when a service does not answer."""
    try:
        with postgres.transaction("pulse_pipeline") as connection:
            recorded = _recorded_status(connection)
        counts = pipes.last_day()
        recorded = replace(
            recorded,
            pipes=tuple(
                (pipe, counts.get((pipe.tenant.tenant_id, pipe.name), LastDay()))
                for pipe in pipes.list_all_pipes()
            ),
        )
        status = plan.ingest_status()
    except psycopg.Error as error:
        return Status(unreachable={"postgres": first_line(error)})
    except KafkaException as error:
        return replace(recorded, unreachable={"kafka": str(error.args[0].str())})
    return replace(
        recorded,
        tenants=tuple(replace(t, lag_events=status.lag.get(t.tenant.tenant_id)) for t in recorded.tenants),
        alarms=status.alarms,
    )


def _recorded_status(connection: postgres.Connection) -> Status:
    """Status from Postgres alone."""
    totals = connection.execute(TOTALS).fetchall()
    freshness = {tenant_id: seconds for tenant_id, seconds, _ in connection.execute(FRESHNESS)}
    waiting: dict[UUID, float] = dict(connection.execute(WAITING).fetchall())
    batches = dict.fromkeys(("planned", "running", "stuck"), 0) | dict(connection.execute(BATCHES).fetchall())
    ((settle, commit),) = connection.execute(
        LATENCIES, {"quantiles": list(QUANTILES), "recent": RECENT}
    ).fetchall()
    ((owed, owed_for),) = connection.execute(OUTBOX).fetchall()
    letters = _open_letters(connection, [tenant_id for tenant_id, *_, dead in totals if dead])
    return Status(
        tenants=tuple(
            TenantStatus(
                Tenant(tenant_id, slug),
                landed,
                duplicates,
                dead,
                # The clocks of the broker and of Postgres may differ.
                freshness_seconds=max(0.0, freshness[tenant_id]) if tenant_id in freshness else None,
                waiting_seconds=waiting.get(tenant_id),
                dead_letters_open=letters.get(tenant_id, {}),
            )
            for tenant_id, slug, landed, duplicates, dead in totals
        ),
        batches=batches,
        settle_seconds=_quantiles(settle),
        commit_seconds=_quantiles(commit),
        outbox_batches=owed,
        outbox_seconds=owed_for,
    )


def _open_letters(connection: postgres.Connection, tenant_ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Open dead letters by tenant and reason, each counted in its own RLS session, in one round trip."""
    cursors = {}
    with connection.pipeline():
        for tenant_id in tenant_ids:
            postgres.set_tenant(connection, tenant_id)
            cursors[tenant_id] = connection.execute(OPEN_LETTERS)
    return {tenant_id: dict(cursor.fetchall()) for tenant_id, cursor in cursors.items()}


def _quantiles(values: Sequence[float] | None) -> dict[float, float]:
    return dict(zip(QUANTILES, values or (), strict=False))
