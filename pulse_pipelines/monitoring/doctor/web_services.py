"""The HTTP API and the Dagster UI: whether they answer where they are said to be."""

from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, reached
from pulse_resources.api_settings import local_url
from pulse_resources.settings import Settings


def api(settings: Settings) -> Iterator[Finding]:
    """Its own word on whether Postgres and Kafka answer it."""
    url = f"{local_url(settings.api.host, settings.api.port)}/readyz"
    fix = "Start it with `pulse up`, or correct PULSE_API__HOST and PULSE_API__PORT"
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http, by the settings
            yield Finding("api", "ready", answer.status == 200, f"{url} answers", fix)
    except HTTPError as error:
        yield Finding("api", "ready", False, f"{url} answers {error.code}: a service behind it is away", fix)
    except (URLError, OSError) as error:
        yield Finding("api", "ready", False, f"{url} does not answer: {getattr(error, 'reason', error)}", fix)


def dagster(settings: Settings) -> Iterator[Finding]:
    """Whether the UI listens; what runs in it is `pulse status`."""
    at = urlsplit(local_url(settings.dagster.host, settings.dagster.webserver_port))
    fix = "Start it with `pulse up`, or correct PULSE_DAGSTER__HOST and PULSE_DAGSTER__WEBSERVER_PORT"
    yield reached("dagster", at.hostname or "", at.port or 80, fix)
