"""Notifiers of alerts: a log and a webhook; custom classes can be added.

A notifier is a class without constructor arguments, named in `alerts.notifiers` as `log`, `webhook` or
`package.module:Class`. It raises when delivery failed; the caller keeps the alert and retries.
"""

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from http.client import HTTPException
from importlib import import_module
from typing import Any, Literal, Protocol

from typing_extensions import override

from pulse_resources.errors import PulseError, Transient, UserError
from pulse_resources.settings import load_settings

Severity = Literal["warning", "error"]

_BACKOFF_S = 0.5
_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500


@dataclass(frozen=True)
class Alert:
    """A current or past problem."""

    key: str
    """Stays the same while it lasts."""
    kind: str
    severity: Severity
    about: Mapping[str, str]
    """Objects concerned, by kind: tenant, dataset, batch, run ..."""
    summary: str
    fix: str
    """Next step."""
    first_seen: datetime
    last_seen: datetime
    resolved_at: datetime | None = None
    """None while it lasts."""


class Notifier(Protocol):
    """Delivers alerts."""

    def notify(self, alerts: Sequence[Alert]) -> None:
        """Deliver alerts: new, lasting and resolved ones. Raises when that failed.

        After a crash an alert may come twice: `key` and `first_seen` identify it.
        """


class LogNotifier:
    """One line per alert in the log `pulse.alerts`: warnings, and errors that need action."""

    def notify(self, alerts: Sequence[Alert]) -> None:
        """See `Notifier`. A resolved alert is a warning, too: it appears wherever its beginning did."""
        log = logging.getLogger("pulse.alerts")
        for alert in alerts:
            ongoing = alert.resolved_at is None
            level = logging.ERROR if ongoing and alert.severity == "error" else logging.WARNING
            about = ", ".join(f"{name}={value}" for name, value in alert.about.items())
            text = f"{alert.summary}. {alert.fix}" if ongoing else f"resolved: {alert.summary}"
            log.log(level, "%s %s", f"{alert.kind} [{about}]" if about else alert.kind, text)


class WebhookNotifier:
    """POSTs `{"source": "pulse", "alerts": [...]}` to `alerts.webhook_url`; any 2xx is success.

    The URL may hold a secret: it appears in no error and no log.

    Raises:
        UserError: the URL is missing, or is not HTTP.
    """

    def __init__(self) -> None:
        settings = load_settings().alerts
        self._url = settings.webhook_url.get_secret_value() if settings.webhook_url else ""
        self._timeout = settings.webhook_timeout_seconds
        self._attempts = settings.webhook_attempts
        if not self._url.startswith(("https://", "http://")):
            raise UserError(
                "the webhook has no http(s) address", fix="Set PULSE_ALERTS__WEBHOOK_URL and restart Pulse"
            )

    def notify(self, alerts: Sequence[Alert]) -> None:
        """See `Notifier`.

        Raises:
            Transient: no attempt was answered with 2xx.
        """
        body = json.dumps({"source": "pulse", "alerts": [document(alert) for alert in alerts]}).encode()
        for attempt in range(1, self._attempts + 1):
            problem, again = self._post(body)
            if problem is None:
                return
            if not again or attempt == self._attempts:
                raise Transient(f"the webhook did not take the alerts: {problem}", attempts=attempt)
            time.sleep(_BACKOFF_S * 2 ** (attempt - 1))

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """Post once; returns the error without the URL, and whether a retry may help."""
        try:
            request = urllib.request.Request(  # noqa: S310 - checked to be HTTP
                self._url, body, {"Content-Type": "application/json", "User-Agent": "pulse"}
            )
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=self._timeout):
                return None, False
        except urllib.error.HTTPError as error:
            with error:
                again = error.code >= _SERVER_ERROR or error.code == _TOO_MANY_REQUESTS
                return f"it answered {error.code}", again
        except urllib.error.URLError as error:
            reason = error.reason
            return (reason.strerror if isinstance(reason, OSError) else None) or type(reason).__name__, True
        except (OSError, HTTPException, ValueError) as error:
            return type(error).__name__, isinstance(error, OSError)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: a redirected POST would become a GET, so the operator has to set the new URL."""

    @override
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def document(alert: Alert) -> dict[str, Any]:
    """Alert as JSON: `state` is `open` or `resolved`, times are ISO 8601."""
    fields = asdict(alert) | {"about": dict(alert.about)}
    times = {name: value.isoformat() for name, value in fields.items() if isinstance(value, datetime)}
    return {"state": "resolved" if alert.resolved_at else "open"} | fields | times


NOTIFIERS: Mapping[str, Callable[[], Notifier]] = {"log": LogNotifier, "webhook": WebhookNotifier}


def notifier(name: str) -> Notifier:
    """Make the notifier named in `alerts.notifiers`.

    Raises:
        UserError: there is no such notifier, or it cannot be constructed.
    """
    if name in NOTIFIERS:
        return NOTIFIERS[name]()
    module, _, attribute = name.partition(":")
    try:
        instance: Notifier = getattr(import_module(module), attribute)()
    except PulseError:
        raise
    except Exception as error:
        raise UserError(
            f"the notifier cannot be made: {type(error).__name__}: {error}",
            fix="Name log, webhook or package.module:Class in PULSE_ALERTS__NOTIFIERS",
            notifier=name,
        ) from error
    return instance
