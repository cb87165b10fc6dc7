"""A topic loses events before ingestion: Pulse alerts and skips nothing until an operator accepts it."""

import random

from confluent_kafka import TopicPartition

from chaos import batches
from chaos.load import Load
from chaos.oracle import Finding
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import PARTITIONS, Sent
from chaos.stack import Stack
from chaos.surroundings import pulse, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import plan as planning
from pulse_resources import kafka, postgres

EVENTS = 100
POSITIONS = """
SELECT partition, settled_offset, base_offset FROM ingest_positions WHERE tenant_id = %s
"""


def run(stack: Stack | None, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Lose events by retention and by recreated topics in turns, beside an unaffected tenant."""
    draw = random.Random(seed)
    harmed, other = Sent(batches.make_tenant()), Sent(batches.make_tenant())
    loads, findings = (Load(seed), Load(seed + 1)), list[Finding]()
    with with_settings(**batches.ENDLESS_ATTEMPTS):
        for number in range(1, round(amount) + 1):
            for load, owner in zip(loads, (harmed, other), strict=True):
                owner.send(load.events(EVENTS))
                batches.finish(batches.plan([owner.tenant]))
                owner.send(load.events(EVENTS))
            (_retention if number % 2 else _recreated)(harmed, draw)
            if harmed.tenant not in {alarm.tenant for alarm in planning.ingest_status().alarms}:
                findings.append(Finding("a loss without an alarm", harmed.tenant.slug, str(number)))
            batches.finish(batches.plan([other.tenant]))  # must not be delayed
            pulse("tenant", "accept-loss", harmed.tenant.slug, "--yes")
            harmed.base = {partition: base for partition, _, base in _positions(harmed.tenant)}
            harmed.send(loads[0].events(EVENTS))
            batches.finish(batches.plan([harmed.tenant]))
            report_progress(number)
        batches.publish_overdue()
    return Outcome([harmed, other], f"{amount:.0f} losses", findings)


def _retention(sent: Sent, draw: random.Random) -> None:
    """Delete the oldest waiting messages."""
    for partition, settled, base in _positions(sent.tenant):
        until = settled + draw.randrange(1, EVENTS // PARTITIONS)
        place = TopicPartition(sent.tenant.topic, partition, until - base)
        for future in kafka.admin().delete_records([place]).values():
            future.result(PATIENCE_S)
        _forget(sent, partition, settled, until)


def _recreated(sent: Sent, draw: random.Random) -> None:
    """Recreate the topic, which loses all waiting messages."""
    topic = sent.tenant.topic
    for future in kafka.admin().delete_topics([topic]).values():
        future.result(PATIENCE_S)
    wait(lambda: topic not in kafka.partition_counts(), "the topic is still there")
    kafka.create_topics([topic])
    for partition, settled, _ in _positions(sent.tenant):
        _forget(sent, partition, settled, 1 + max(offset for _, offset in sent.events))


def _forget(sent: Sent, partition: int, start: int, end: int) -> None:
    for offset in range(start, end):
        sent.events.pop((partition, offset), None)


def _positions(tenant: Tenant) -> list[tuple[int, int, int]]:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        return connection.execute(POSITIONS, [tenant.tenant_id]).fetchall()
