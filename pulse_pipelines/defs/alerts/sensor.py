"""Alert sensor: turns current issues into alerts and delivers them."""

import json
import time
from collections.abc import Callable, Iterable
from functools import partial

import dagster as dg

from pulse_pipelines.defs.alerts.checks import failing_checks
from pulse_pipelines.defs.alerts.runs import failed_runs
from pulse_pipelines.ingest import attempts
from pulse_pipelines.monitoring import alerts, issues
from pulse_pipelines.monitoring.issues import Issue, Issues, Kind
from pulse_pipelines.runtime.parts import shows_check


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for failed runs and the tenants that they failed for, stuck batches, topics that "
    "cannot be ingested, stale tenants, overdue dead letters and failing checks, and informs the notifiers "
    "(settings: alerts). Open alerts are repeated hourly; the end of one is sent once. See all with "
    "`pulse alerts`, try it with `pulse alerts test`.",
)
def alert_watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    current, waiting = issues.find_issues(json.loads(context.cursor or "{}"), time.time())
    sources: dict[Kind, Callable[[], Iterable[Issue]]] = {
        Kind.RUN_FAILED: lambda: failed_runs(context.instance, attempts.open_batches()),
        Kind.RESTORED: issues.find_restored,
        Kind.CHECK_FAILING: lambda: failing_checks(context.instance, partial(_is_shown, context)),
    }
    wrong, checked = list(current.issues), set(current.checked_kinds)
    for kind, find in sources.items():
        try:
            wrong += find()
            checked.add(kind)
        except Exception:  # an error in one source must not keep the others' alerts from being sent
            context.log.exception("%s was not looked at", kind)
    alerts.record(Issues(tuple(wrong), frozenset(checked)))
    delivered = alerts.deliver()
    for delivery in delivered:
        if delivery.error is not None:
            context.log.error("%s was not told, and will be: %s", delivery.notifier, delivery.error)
    count = sum(len(delivery.alerts) for delivery in delivered if delivery.error is None)
    skip = dg.SkipReason(f"{len(alerts.remembered())} alerts are open, {count} notices were delivered")
    return dg.SensorResult(skip_reason=skip, cursor=json.dumps(waiting))


def _is_shown(context: dg.SensorEvaluationContext, key: dg.AssetCheckKey) -> bool:
    return context.repository_def is not None and shows_check(context.repository_def, key)
