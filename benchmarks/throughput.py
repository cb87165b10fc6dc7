"""Throughput of a backlog in a running, warm stack: Pulse's rate, and its peers' in the same stack.

While the backlog is sent, and while the peers run, all sensors are stopped, so nothing else runs. For Pulse
they are started again; the clock starts when `ingest_lag` plans the first batch.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console

from benchmarks import cpu, load, peers, sensors, steps
from benchmarks.peers import Peer
from pulse_api.demo.report import busy_seconds
from pulse_api.demo.run import ledger, wait_until_settled
from pulse_pipelines.defs.curated.job import curate
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import postgres

WARM_EVENTS = 100_000


@dataclass(frozen=True)
class ThroughputMeasurements:
    size: int
    """Mean bytes of an event."""
    rate: float
    """Pulse's events per second, from the plan of the first batch to the settlement of the last."""
    busy_rate: float
    """Likewise, without the time in which no batch was running."""
    processor_seconds: Counter[str]
    """Pulse's processor seconds by service."""
    step_seconds: Counter[str]
    """Seconds by step of Pulse's runs, of which two are concurrent."""
    peers: list[Peer]


def measure(
    console: Console, owners: list[Tenant], events: int, *, with_peers: bool
) -> ThroughputMeasurements:
    """Warm up, send the backlog, and measure; requires a running stack and empty topics.

    Raises:
        PulseError: the backlog did not settle.
        AssertionError: a peer did not land every event.
    """
    warm = _warm_up(console)
    sensors.stop(lambda _: True)
    before = ledger(owners)
    size = load.send(console, owners, events)
    rates = list(peers.measure(console, owners, warm, events)) if with_peers else []
    sensors.start(lambda name: name != sensors.INGEST)
    sensors.wait_until_idle()
    assert ledger(owners) == before, "Pulse took events while its sensors were to be stopped"
    since = datetime.now(UTC)
    with cpu.sampled() as spent:
        sensors.start(lambda name: name == sensors.INGEST)
        wait_until_settled(console, owners, before, events)
    sensors.wait_until_idle()
    rate, busy_rate = events / wall_seconds(since), events / busy_seconds(since)
    return ThroughputMeasurements(size, rate, busy_rate, spent, steps.of_runs(since), rates)


def wall_seconds(since: datetime) -> float:
    """Seconds from the first plan to the last settlement of batches planned since then."""
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute(
            "SELECT extract(epoch FROM max(settled_at) - min(planned_at))::float8 FROM ingest_batches"
            " WHERE planned_at >= %s",
            [since],
        ).fetchone()
    return float(row[0]) if row else 0.0


def _warm_up(console: Console) -> Tenant:
    """Make a tenant, and send its events through all stages, up to the summaries of their day."""
    (warm,) = load.make_tenants(1)
    before = ledger([warm])
    load.send(console, [warm], WARM_EVENTS)
    wait_until_settled(console, [warm], before, WARM_EVENTS)
    with console.status("waiting for the warm-up's summaries: a day is due a minute after its last change"):
        sensors.wait_for_success(curate.name)
    return warm
