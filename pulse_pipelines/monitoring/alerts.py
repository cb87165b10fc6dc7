"""Alerts: issues stored while they last, and delivered to every notifier.

Alerts and pending deliveries are stored in Postgres: when a receiver is down, or a process dies between
sending and recording it, an alert may arrive late or twice, but is never lost.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from pulse_pipelines.monitoring.issues import Issues, brief
from pulse_resources import notify, postgres
from pulse_resources.notify import Alert, Notifier
from pulse_resources.process.faults import fail_point
from pulse_resources.settings import load_settings

TOGETHER = 100
"""Maximum number of alerts per message."""

RAISE = """
INSERT INTO alerts (key, kind, severity, about, summary, fix) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (key) WHERE resolved_at IS NULL DO UPDATE SET last_seen = now(),
    severity = EXCLUDED.severity, about = EXCLUDED.about, summary = EXCLUDED.summary, fix = EXCLUDED.fix
"""
RESOLVE = """
UPDATE alerts SET resolved_at = now()
WHERE resolved_at IS NULL AND kind = ANY(%s) AND key <> ALL(%s)
"""
OWE = """
INSERT INTO alert_deliveries (alert_id, notifier)
SELECT alert_id, notifier FROM alerts, unnest(%s::text[]) notifier WHERE resolved_at IS NULL
ON CONFLICT DO NOTHING
"""
FORGET = "DELETE FROM alerts WHERE resolved_at < now() - make_interval(secs => %s * 86400.0)"
FIELDS = "a.key, a.kind, a.severity, a.about, a.summary, a.fix, a.first_seen, a.last_seen, a.resolved_at"
DUE = f"""
SELECT a.alert_id, {FIELDS} FROM alert_deliveries d JOIN alerts a USING (alert_id)
WHERE d.notifier = %(notifier)s AND NOT d.closed AND (a.resolved_at IS NOT NULL OR d.notified_at IS NULL
    OR d.notified_at <= now() - make_interval(secs => %(repeat)s)
    OR a.severity = 'error' AND d.told_severity = 'warning')
ORDER BY a.alert_id LIMIT %(limit)s FOR UPDATE OF d SKIP LOCKED
"""  # noqa: S608 - from constants
RECORD_DELIVERY = """
UPDATE alert_deliveries SET notified_at = now(), told_severity = %s, closed = %s, error = NULL
WHERE notifier = %s AND alert_id = %s
"""
RECORD_FAILURE = "UPDATE alert_deliveries SET error = %s WHERE notifier = %s AND alert_id = ANY(%s)"
LIST = f"""
SELECT {FIELDS}, (
    SELECT coalesce(jsonb_object_agg(notifier,
        jsonb_build_object('notified_at', notified_at, 'error', error)), '{{}}')
    FROM alert_deliveries d WHERE d.alert_id = a.alert_id)
FROM alerts a WHERE %(all)s OR resolved_at IS NULL ORDER BY a.alert_id DESC LIMIT %(limit)s
"""  # noqa: S608


@dataclass(frozen=True)
class Delivery:
    """Result of one delivery to one notifier."""

    notifier: str
    alerts: tuple[Alert, ...]
    error: str | None
    """None: it was delivered."""


@dataclass(frozen=True)
class Remembered:
    alert: Alert
    deliveries: Mapping[str, Mapping[str, Any]]
    """Deliveries by notifier: `notified_at` (ISO 8601; None: never) and the last `error`."""


def record(current: Issues) -> None:
    """Store the issues, and resolve alerts of the checked kinds that were not found again."""
    settings = load_settings().alerts
    issues = {issue.key: issue for issue in current.issues}
    with postgres.transaction("pulse_pipeline") as connection:
        with connection.cursor() as cursor:
            cursor.executemany(
                RAISE,
                [
                    (f.key, f.kind, f.severity, Jsonb(dict(f.about)), f.summary, f.fix)
                    for _, f in sorted(issues.items())
                ],
            )
        connection.execute(RESOLVE, [[kind.value for kind in current.checked_kinds], list(issues)])
        connection.execute(OWE, [settings.notifiers])
        connection.execute(FORGET, [settings.keep_days])


def deliver(make: Callable[[str], Notifier] = notify.notifier) -> list[Delivery]:
    """Send each notifier its pending alerts: new ones, repeats of those that last, and resolved ones.

    A failed notifier is retried by the next call; it does not delay the others.
    """
    deliveries = []
    for name in load_settings().alerts.notifiers:
        while (delivered := _deliver(name, make)) is not None:
            deliveries.append(delivered)
            if delivered.error is not None or len(delivered.alerts) < TOGETHER:
                break
    return deliveries


def _deliver(name: str, make: Callable[[str], Notifier]) -> Delivery | None:
    """Send one message to one notifier; None when nothing is pending."""
    values = {"notifier": name, "repeat": load_settings().alerts.repeat_seconds, "limit": TOGETHER}
    with postgres.transaction("pulse_pipeline") as connection:
        due = connection.execute(DUE, values).fetchall()
        if not due:
            return None
        alerts = {row[0]: Alert(*row[1:]) for row in due}
        error = tell(name, list(alerts.values()), make)
        fail_point("alerts.before_mark")
        if error is None:  # record what was sent: the alert may have been resolved meanwhile
            notices = [(a.severity, a.resolved_at is not None, name, number) for number, a in alerts.items()]
            connection.cursor().executemany(RECORD_DELIVERY, notices)
        else:
            connection.execute(RECORD_FAILURE, [error, name, list(alerts)])
    return Delivery(name, tuple(alerts.values()), error)


def tell(name: str, alerts: Sequence[Alert], make: Callable[[str], Notifier] = notify.notifier) -> str | None:
    """Send alerts to one notifier, once; returns why it failed, None if it did not."""
    try:
        make(name).notify(alerts)
    except Exception as error:  # a notifier may be third-party code: its failure must not stop the others
        return brief(f"{type(error).__name__}: {error}")
    return None


def remembered(*, everything: bool = False, limit: int = 1_000) -> list[Remembered]:
    """Open alerts, or all stored ones; latest first."""
    with postgres.transaction("pulse_pipeline") as connection:
        rows: Iterable[Sequence[Any]] = connection.execute(LIST, {"all": everything, "limit": limit})
        return [Remembered(Alert(*row[:-1]), row[-1]) for row in rows]
