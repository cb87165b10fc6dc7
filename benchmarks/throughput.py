"""A backlog through a stack that is up and warm: Pulse's rate, and its peers' in the same stack.

While the backlog is sent, and while the peers take it, all sensors are stopped: nothing else runs. For Pulse
they all run again; the clock starts when `ingest_lag` plans the first batch.
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
class Measured:
    size: int
    """Mean bytes of an event."""
    rate: float
    """Of Pulse: events per second from the first batch's plan to the last one's settlement."""
    busy_rate: float
    """The same, without the time in which no batch was worked on."""
    processor_seconds: Counter[str]
    """Of Pulse, by service."""
    step_seconds: Counter[str]
    """Of Pulse, by step of its runs, of which two go on at a time."""
    peers: list[Peer]


def measure(console: Console, owners: list[Tenant], events: int, *, with_peers: bool) -> Measured:
    """Warm the stack up, send the backlog, and measure; the stack is up, and the tenants' topics are empty.

    Raises:
        PulseError: it did not settle.
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
    return Measured(size, rate, busy_rate, spent, steps.of_runs(since), rates)


def wall_seconds(since: datetime) -> float:
    """From the first plan to the last settlement of the batches that were planned since then."""
    with postgres.transaction("pulse_pipeline") as connection:
        row = connection.execute(
            "SELECT extract(epoch FROM max(settled_at) - min(planned_at))::float8 FROM ingest_batches"
            " WHERE planned_at >= %s",
            [since],
        ).fetchone()
    return float(row[0]) if row else 0.0


def _warm_up(console: Console) -> Tenant:
    """A tenant whose events have gone through everything, up to the summaries of their day."""
    (warm,) = load.make_tenants(1)
    before = ledger([warm])
    load.send(console, [warm], WARM_EVENTS)
    wait_until_settled(console, [warm], before, WARM_EVENTS)
    with console.status("waiting for the warm-up's summaries: a day is due a minute after its last change"):
        sensors.wait_for_success(curate.name)
    return warm
