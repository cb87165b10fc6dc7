"""HTTP API, REST catalog and Dagster UI: whether they answer at their configured addresses."""

from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, reached
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import local_url


def api(settings: Settings) -> Iterator[Finding]:
    """Check the API's readiness endpoint, which covers Postgres and Kafka."""
    yield _ready("api", local_url(settings.api.host, settings.api.port))


def lake(settings: Settings) -> Iterator[Finding]:
    """Check the REST catalog's readiness endpoint, which covers Postgres."""
    yield _ready("lake", local_url(settings.lake.host, settings.lake.port))


def _ready(service: str, where: str) -> Finding:
    url = f"{where}/readyz"
    name = f"PULSE_{service.upper()}__"
    fix = f"Start it with `pulse up`, or correct {name}HOST and {name}PORT"
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http, by the settings
            return Finding(service, "ready", answer.status == 200, f"{url} answers", fix)
    except HTTPError as error:
        problem = f"{url} answers {error.code}: a service behind it is away"
    except (URLError, OSError) as error:
        problem = f"{url} does not answer: {getattr(error, 'reason', error)}"
    return Finding(service, "ready", False, problem, fix)


def dagster(settings: Settings) -> Iterator[Finding]:
    """Check whether the UI listens; `pulse status` reports on its runs."""
    at = urlsplit(local_url(settings.dagster.host, settings.dagster.webserver_port))
    fix = "Start it with `pulse up`, or correct PULSE_DAGSTER__HOST and PULSE_DAGSTER__WEBSERVER_PORT"
    yield reached("dagster", at.hostname or "", at.port or 80, fix)
