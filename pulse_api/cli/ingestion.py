"""Ingestion status for `pulse status`: waiting events, batches in flight, and problems that need a person."""

from dataclasses import dataclass, field
from typing import Any

from pulse_api.cli.output import shown
from pulse_pipelines.ingest import attempts, plan


@dataclass(frozen=True)
class Ingestion:
    """Lag, batches by state, and problems as sentences."""

    waiting_events: int = 0
    """Events that are not settled, whether in a batch or not yet in one."""
    waiting_topics: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "waiting_events": self.waiting_events,
            "waiting_topics": self.waiting_topics,
            "batches": self.batches,
            "problems": list(self.problems),
        }

    def lines(self) -> list[str]:
        """Lines for a person, with rich's markup."""
        batches = ", ".join(f"{count} {state}" for state, count in self.batches.items()) or "none"
        return [
            f"ingestion: {self.waiting_events:,} events wait in {self.waiting_topics} topic(s); "
            f"batches in flight: {batches}",
            *(f"[red]problem[/red]: {shown(problem)}" for problem in self.problems),
        ]


def ingestion() -> Ingestion:
    """Read positions, broker and batches once."""
    import psycopg  # an exception's module is imported where it is caught
    from confluent_kafka import KafkaException

    try:
        status, batches = plan.ingest_status(), attempts.open_batches()
    except (psycopg.Error, KafkaException) as error:
        return Ingestion(problems=(f"cannot be read: {error}",))
    states: dict[str, int] = {}
    for batch in batches:
        states[batch.state] = states.get(batch.state, 0) + 1
    stuck = [
        f"batch {b.batch_id} is stuck: {b.last_error}. Remove the cause, then: pulse batch retry {b.batch_id}"
        for b in batches
        if b.stuck
    ]
    alarms = [f"tenant {a.tenant.slug}, partition {a.partition}: {a.problem}. {a.fix}" for a in status.alarms]
    return Ingestion(
        sum(status.lag.values()),
        sum(lag > 0 for lag in status.lag.values()),
        states,
        (*stuck, *alarms),
    )
