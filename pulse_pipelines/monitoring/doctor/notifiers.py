"""Notifiers: whether each can be constructed, and whether the webhook's host answers. Sends nothing."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from pulse_pipelines.monitoring.doctor.finding import Finding, reached
from pulse_resources import notify
from pulse_resources.errors import UserError
from pulse_resources.settings import Settings

ALERTS = "alerts"
_PORTS = {"http": 80, "https": 443}


def check_notifiers(settings: Settings) -> Iterator[Finding]:
    """Check each notifier; the webhook's address may contain a secret, so only its host is shown."""
    if not settings.alerts.notifiers:
        result = "none is named: alerts are sent to no one, `pulse alerts` lists them"
        yield Finding(ALERTS, "notifiers", True, result)
    for name in settings.alerts.notifiers:
        try:
            notify.notifier(name)
        except UserError as error:
            fix = error.fix or "Correct PULSE_ALERTS__NOTIFIERS"
            yield Finding(ALERTS, name, False, error.message, fix)
            continue
        yield _webhook(settings) if name == "webhook" else Finding(ALERTS, name, True, "can be made")


def _webhook(settings: Settings) -> Finding:
    secret = settings.alerts.webhook_url
    fix = "Correct PULSE_ALERTS__WEBHOOK_URL, or let this machine reach its host"
    at = urlsplit(secret.get_secret_value() if secret else "")
    try:
        host, port = at.hostname or "", at.port or _PORTS[at.scheme]
    except ValueError:
        return Finding(ALERTS, "webhook", False, "its address has no port that is a number", fix)
    finding = reached(ALERTS, host, port, fix)
    return Finding(ALERTS, "webhook", finding.ok, finding.found, finding.fix)
