"""Prometheus metrics of the whole pipeline, gathered at most every few seconds, however often scraped."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from pulse_pipelines.monitoring.status import Status, TenantStatus, gather
from pulse_pipelines.pipes import LastDay, Pipe

KEEP_S = 5.0
PATIENCE_S = 3.0
"""Maximum wait of a scrape for fresh values; after it, the last ones are returned, with their age."""

_log = logging.getLogger("pulse.api")


class Gatherer:
    """Gathers pipeline status in its own thread, so that an unresponsive broker does not delay a scrape."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gathering = False
        self._measures: Status | None = None
        self._gathered_at = float("-inf")

    def latest(self) -> tuple[Status | None, float]:
        """The latest status, if any has been gathered, and its age in seconds."""
        with self._changed:
            if not self._fresh() and not self._gathering:
                self._gathering = True
                threading.Thread(target=self._gather, name="measures", daemon=True).start()
            self._changed.wait_for(lambda: not self._gathering, PATIENCE_S)
            return self._measures, time.monotonic() - self._gathered_at

    def _fresh(self) -> bool:
        return time.monotonic() - self._gathered_at < KEEP_S

    def _gather(self) -> None:
        measures = None
        try:
            measures = gather()
        except Exception:
            _log.exception("the measures could not be gathered")
        finally:
            with self._changed:
                self._gathering = False
                if measures is not None:
                    self._measures, self._gathered_at = measures, time.monotonic()
                self._changed.notify_all()


class PipelineCollector(Collector):
    """Prometheus collector of the pipeline's status."""

    def __init__(self) -> None:
        self._gatherer = Gatherer()

    @override
    def collect(self) -> Iterator[Metric]:
        measures, age = self._gatherer.latest()
        if measures is not None:
            yield _gauge("pulse_measures_age_seconds", "Age of the measures below.", [], [((), age)])
            yield from _families(measures)


def _families(measures: Status) -> Iterator[Metric]:
    yield _gauge(
        "pulse_up",
        "Whether a service behind Pulse answers.",
        ["service"],
        [((name,), float(name not in measures.unreachable)) for name in ("kafka", "postgres")],
    )
    if "postgres" in measures.unreachable:
        return  # a zero would be wrong
    yield from _of_tenants(measures.tenants)
    yield from _of_pipes(measures.pipes)
    batches = [((state,), count) for state, count in measures.batches.items()]
    yield _gauge("pulse_batches", "Batches that are not settled.", ["state"], batches)
    for name, help_text, quantiles in (
        ("pulse_settle_seconds", "Settle stage of recent batches.", measures.settle_seconds),
        ("pulse_commit_seconds", "Slowest transaction of recent batches.", measures.commit_seconds),
    ):
        values = [((str(quantile),), seconds) for quantile, seconds in quantiles.items()]
        yield _gauge(name, help_text, ["quantile"], values)
    owed = "Batches of tenants whose dead letters may not all be on their topic yet."
    yield _gauge("pulse_outbox_batches", owed, [], [((), measures.outbox_batches)])
    yield _gauge(
        "pulse_outbox_seconds", "Since the first of them settled.", [], [((), measures.outbox_seconds)]
    )
    yield _gauge(
        "pulse_alarms",
        "Topic partitions that an operator must look at: see `pulse status`.",
        ["tenant", "partition"],
        [((alarm.tenant.slug, str(alarm.partition)), 1.0) for alarm in measures.alarms],
    )


Measure = Callable[[TenantStatus], float | None]
_PER_TENANT: tuple[tuple[str, str, Measure], ...] = (
    ("pulse_lag_events", "Events in the topic that are not settled.", lambda t: t.lag_events),
    (
        "pulse_freshness_seconds",
        "Of the latest batch: from its oldest event's append to its settling.",
        lambda t: t.freshness_seconds,
    ),
    (
        "pulse_waiting_seconds",
        "Since the oldest open batch of the tenant was planned; 0 if none is.",
        lambda t: t.waiting_seconds or 0.0,
    ),
)


def _of_tenants(tenants: Iterable[TenantStatus]) -> Iterator[Metric]:
    for name, help_text, measure in _PER_TENANT:
        samples = [((t.tenant.slug,), value) for t in tenants if (value := measure(t)) is not None]
        yield _gauge(name, help_text, ["tenant"], samples)
    yield _gauge(
        "pulse_dead_letters_open",
        "Dead letters that are neither replayed nor discarded.",
        ["tenant", "reason"],
        [((t.tenant.slug, reason), n) for t in tenants for reason, n in t.dead_letters_open.items()],
    )
    events = CounterMetricFamily(
        "pulse_events", "Events settled, by what became of them.", labels=["tenant", "outcome"]
    )
    for t in tenants:
        outcomes: Mapping[str, int] = {
            "landed": t.landed,
            "duplicate": t.duplicates,
            "dead_letter": t.dead_letters,
        }
        for outcome, count in outcomes.items():
            events.add_metric([t.tenant.slug, outcome], count)
    yield events


_PER_PIPE: tuple[tuple[str, str, Callable[[Pipe], float | None]], ...] = (
    (
        "pulse_pipe_lag_seconds",
        "Age of the moment up to which everything in the pipe's source has settled.",
        lambda pipe: pipe.lag_seconds,
    ),
    (
        "pulse_pipe_every_seconds",
        "Schedule of a pipe that is not paused.",
        lambda pipe: pipe.definition.every_seconds if pipe.state == "active" else None,
    ),
    (
        "pulse_pipe_wal_bytes",
        "Bytes of its log that the source keeps for the pipe.",
        lambda pipe: pipe.wal_bytes,
    ),
    (
        "pulse_pipe_behind",
        "Versions of the dataset's log that the pipe's sink does not have.",
        lambda pipe: pipe.behind,
    ),
    ("pulse_pipe_failed", "Whether the pipe's last run failed.", lambda pipe: float(pipe.error is not None)),
)


def _of_pipes(pipes: Iterable[tuple[Pipe, LastDay]]) -> Iterator[Metric]:
    of_all_pipes = list(pipes)
    for name, help_text, measure in _PER_PIPE:
        samples = [
            ((p.tenant.slug, p.name), value) for p, _ in of_all_pipes if (value := measure(p)) is not None
        ]
        yield _gauge(name, help_text, ["tenant", "pipe"], samples)
    yield _gauge(
        "pulse_pipe_entities",
        "Entities of the pipe's runs of the last 24 hours, by what became of them.",
        ["tenant", "pipe", "outcome"],
        [
            ((pipe.tenant.slug, pipe.name, outcome), count)
            for pipe, counts in of_all_pipes
            for outcome, count in counts._asdict().items()
        ],
    )


def _gauge(
    name: str, help_text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


_PIPELINE = CollectorRegistry()
_PIPELINE.register(PipelineCollector())


def exposition() -> bytes:
    """All metrics in Prometheus' text format: those of this process, then those of the whole pipeline."""
    return generate_latest(REGISTRY) + generate_latest(_PIPELINE)
