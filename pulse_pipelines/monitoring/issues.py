"""Issues: current problems. The caller keeps the only state: since when each tenant's events wait."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby

from pulse_pipelines.ingest import attempts, dead_letter_topic
from pulse_pipelines.ingest.attempts import OpenBatch
from pulse_pipelines.ingest.sync_deletions import HeldSync, syncs_awaiting_approval as syncs_held
from pulse_pipelines.monitoring import status
from pulse_pipelines.monitoring.status import Status
from pulse_pipelines.pipes import Pipe
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Standing
from pulse_pipelines.states import declared_states
from pulse_pipelines.states.declared_states import FullState
from pulse_pipelines.tables import store_mark
from pulse_resources.notify import Severity
from pulse_resources.settings import load_settings

SHOWN_DAYS = 5
"""Days that an issue names, at most."""
LONGEST = 500
"""Maximum length of a summary in characters: the cause of a failed run can be a page."""


class Kind(StrEnum):
    UNREACHABLE = "unreachable"
    TOPIC = "topic"
    BATCH_STUCK = "batch_stuck"
    TENANT_STALE = "tenant_stale"
    OUTBOX_OVERDUE = "outbox_overdue"
    WORK_FAILED = "work_failed"
    RUN_FAILED = "run_failed"
    CHECK_FAILING = "check_failing"
    SYNC_HELD = "sync_held"
    PIPE_FAILED = "pipe_failed"
    PIPE_LOG = "pipe_log"
    STATE_FULL = "state_full"
    RESTORED = "restored"


@dataclass(frozen=True)
class Issue:
    """A current problem."""

    kind: Kind
    of: str
    """Subject of the issue, unique in its kind."""
    severity: Severity
    summary: str
    fix: str
    about: Mapping[str, str]

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.of}"


@dataclass(frozen=True)
class Issues:
    issues: tuple[Issue, ...]
    checked_kinds: frozenset[Kind]
    """Kinds that were checked completely; of the others nothing is known."""


Waiting = Mapping[str, tuple[int, float]]
"""By slug of each tenant with unsettled events: how many are settled, and since when that count stands still,
in seconds of the caller's clock."""


def find_issues(waiting: Waiting, now: float) -> tuple[Issues, dict[str, tuple[int, float]]]:
    """Find all current issues.

    Args:
        waiting: result of the previous call.
        now: by the clock of all calls, in seconds.

    Returns:
        The issues, and the `waiting` of the next call.

    Raises:
        psycopg.OperationalError: Postgres does not answer.
    """
    settings = load_settings().alerts
    measured = status.gather()
    following = _waiting(measured, waiting, now)
    issues = [*_stuck(attempts.open_batches()), *_overdue(settings.outbox_seconds)]
    issues.extend(_awaiting_approval(syncs_held()))
    issues.extend(_full(declared_states.full()))
    all_pipes = [pipe for pipe, _ in measured.pipes]
    issues.extend([*_pipes_failed(all_pipes), *_large_logs(all_pipes, settings.pipe_log_mb)])
    issues.extend(_work_failed(failed_work.standing(), timedelta(hours=settings.failed_run_hours)))
    checked = {
        Kind.SYNC_HELD,
        Kind.STATE_FULL,
        Kind.UNREACHABLE,
        Kind.BATCH_STUCK,
        Kind.OUTBOX_OVERDUE,
        Kind.WORK_FAILED,
    }
    if "postgres" not in measured.unreachable:
        checked |= {Kind.PIPE_FAILED, Kind.PIPE_LOG}
    issues.extend(_unreachable(measured))
    if not measured.unreachable:
        issues.extend([*_topics(measured), *_stale(following, now, settings.stale_seconds)])
        checked |= {Kind.TOPIC, Kind.TENANT_STALE}
    return Issues(tuple(issues), frozenset(checked)), following


def find_restored() -> Iterator[Issue]:
    """The issue that Postgres or the object store was restored. Raises as `store_mark.renew`."""
    if (difference := store_mark.renew()) is not None:
        yield Issue(Kind.RESTORED, "store_mark", "error", difference.sentence, store_mark.FIX, {})


def _waiting(measured: Status, before: Waiting, now: float) -> dict[str, tuple[int, float]]:
    """Since when each tenant's settled count has stood still while events wait."""
    following = {}
    for tenant in measured.tenants:
        slug = tenant.tenant.slug
        settled = tenant.landed + tenant.duplicates + tenant.dead_letters
        count, since = before.get(slug, (settled, now))
        if tenant.lag_events is None:  # the broker does not answer: keep the previous value
            if slug in before:
                following[slug] = (count, since)
        elif tenant.lag_events:
            # A clock that was set back must not lengthen the wait.
            following[slug] = (settled, min(since, now) if settled == count else now)
    return following


def _stale(waiting: Waiting, now: float, patience: float) -> Iterable[Issue]:
    for slug, (_, since) in waiting.items():
        if now - since >= patience:
            yield Issue(
                Kind.TENANT_STALE,
                slug,
                "error",
                f"the oldest event of tenant {slug} waits longer than {patience:,.0f} s to be settled",
                "Look at its batches with `pulse batch list` and at the sensor `ingest_lag` in Dagster",
                {"tenant": slug},
            )


def _stuck(batches: Iterable[OpenBatch]) -> Iterable[Issue]:
    for batch in batches:
        if batch.stuck:
            tenants = attempts.waiting_in(batch.batch_id)
            yield Issue(
                Kind.BATCH_STUCK,
                batch.batch_id,
                "error",
                brief(f"batch {batch.batch_id} is stuck after {batch.attempt} attempts: {batch.last_error}"),
                "Remove the cause; it is tried again from time to time, and at once by: "
                f"pulse batch retry {batch.batch_id}",
                {"batch": batch.batch_id, "tenants": ", ".join(tenants)},
            )


def _topics(measured: Status) -> Iterable[Issue]:
    for alarm in measured.alarms:
        yield Issue(
            Kind.TOPIC,
            f"{alarm.tenant.slug}/{alarm.partition}",
            "error",
            brief(f"partition {alarm.partition} of tenant {alarm.tenant.slug}'s topic: {alarm.problem}"),
            f"Nothing of this topic is ingested meanwhile. {alarm.fix}",
            {"tenant": alarm.tenant.slug, "topic": alarm.tenant.topic, "partition": str(alarm.partition)},
        )


def _awaiting_approval(syncs: Iterable[HeldSync]) -> Iterable[Issue]:
    for sync in syncs:
        arguments = f"{sync.tenant} {sync.dataset} {sync.sync_id}"
        yield Issue(
            Kind.SYNC_HELD,
            f"{sync.tenant}/{sync.dataset}/{sync.sync_id}",
            "error",
            brief(f"a full sync of tenant {sync.tenant}, dataset {sync.dataset}, is held: {sync.reason}"),
            "Its entities have landed, and nothing was deleted. If its source is right: "
            f"pulse sync commit {arguments}; if not: pulse sync rollback {arguments}",
            {"tenant": sync.tenant, "dataset": sync.dataset, "sync": str(sync.sync_id)},
        )


def _full(states: Iterable[FullState]) -> Iterable[Issue]:
    for state in states:
        short = (
            f"; its windows have room for {state.minutes:,} minutes only" if state.minutes is not None else ""
        )
        yield Issue(
            Kind.STATE_FULL,
            f"{state.tenant}/{state.dataset}",
            "warning",
            f"the state of tenant {state.tenant}, dataset {state.dataset}, has no room: keys were left out "
            f"{state.missed_keys:,} times{short}",
            "The events are in the table, and what the state has is kept. Declare it with more room "
            "(--max-keys, --max-buckets), or by a property with fewer values",
            {"tenant": state.tenant, "dataset": state.dataset},
        )


def _pipes_failed(pipes: Iterable[Pipe]) -> Iterable[Issue]:
    for pipe in pipes:
        if pipe.error is None:
            continue
        tenant = pipe.tenant.slug
        yield Issue(
            Kind.PIPE_FAILED,
            f"{tenant}/{pipe.name}",
            "error",
            brief(f"pipe {pipe.name} of tenant {tenant}, after its last run: {pipe.error}"),
            "What it brought before stays. Its run in Dagster has the whole error, and names the log. Remove "
            "the cause; it runs again by its schedule, and at once by: "
            f"pulse pipe run {tenant} {pipe.name}",
            {"tenant": tenant, "pipe": pipe.name, "dataset": pipe.dataset},
        )


def _large_logs(pipes: Iterable[Pipe], most_mb: float) -> Iterable[Issue]:
    """Pipes for which their source keeps much of its log, or is about to throw it away."""
    for pipe in pipes:
        going, log_mb = pipe.wal_status == "unreserved", (pipe.wal_bytes or 0) / 1024 / 1024
        if not going and log_mb <= most_mb:
            continue
        tenant = pipe.tenant.slug
        yield Issue(
            Kind.PIPE_LOG,
            f"{tenant}/{pipe.name}",
            "error" if going else "warning",
            f"the source of pipe {pipe.name} of tenant {tenant} keeps {log_mb:,.0f} MB of its log for it"
            + (", and throws it away soon (max_slot_wal_keep_size)" if going else ""),
            f"Let it run, or run more often: pulse pipe run {tenant} {pipe.name}; if it is no longer "
            f"needed: pulse pipe delete {tenant} {pipe.name}",
            {"tenant": tenant, "pipe": pipe.name, "source": pipe.definition.of_postgres.source},
        )


def _overdue(patience: float) -> Iterable[Issue]:
    for tenant, batches in dead_letter_topic.overdue(patience).items():
        yield Issue(
            Kind.OUTBOX_OVERDUE,
            tenant.slug,
            "warning",
            f"dead letters of tenant {tenant.slug} settled more than {patience:,.0f} s ago and are not all "
            "on its topic",
            "Look at the runs of the job `publish_dead_letters`; the dead letters themselves are safe",
            {"tenant": tenant.slug, "batches": ", ".join(sorted(batches)[:10])},
        )


def _work_failed(standing: Iterable[Standing], lately: timedelta) -> Iterable[Issue]:
    """One issue per job and dataset, or tenant, with work that failed when last tried."""
    recent = (failure for failure in standing if datetime.now(UTC) - failure.last_at < lately)
    ordered = sorted(recent, key=_group_of)
    for (job, tenant, slug), group in groupby(ordered, key=_group_of):
        failures = list(group)
        longest = max(failures, key=lambda failure: failure.count)
        days = sorted({str(failure.work.day) for failure in failures if failure.work.day})
        named = ", ".join([*days[:SHOWN_DAYS], *([f"{len(days)} in all"] if len(days) > SHOWN_DAYS else [])])
        about = {"job": job, "tenant": tenant, "dataset": slug, "days": named}
        owner = f"tenant {tenant}" + (f", dataset {slug}" if slug else "") + (f", {named}" if named else "")
        mend = f": pulse backfill {tenant} {slug} --from {days[0]}" if slug and days else ""
        times = "once" if longest.count == 1 else f"{longest.count} times in a row"
        yield Issue(
            Kind.WORK_FAILED,
            "/".join(part for part in (job, tenant, slug) if part),
            "warning" if longest.count == 1 else "error",
            brief(f"{job} of {owner} failed {times}: {longest.error}"),
            f"Remove the cause: it is tried again by itself at {longest.retry_at:%Y-%m-%d %H:%M} UTC, and "
            f"each time later. Other work continues. Look at the runs of the job `{job}`, and at the checks "
            f"of the dataset; what only fails one day may be mended by a backfill of it{mend}",
            {name: value for name, value in about.items() if value},
        )


def _group_of(failed: Standing) -> tuple[str, str, str]:
    return failed.work.job, failed.work.tenant.slug, failed.work.slug or ""


def _unreachable(measured: Status) -> Iterable[Issue]:
    for service, error in measured.unreachable.items():
        yield Issue(
            Kind.UNREACHABLE,
            service,
            "error",
            brief(f"{service} does not answer: {error}"),
            "Look with `pulse status`; nothing is lost, ingestion continues when it is back",
            {"service": service},
        )


def brief(text: str) -> str:
    """Shorten a text to one line of limited length."""
    line = " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
