"""HTTP API, REST catalog and Dagster UI: whether they answer, here or at their public URL on another host."""

from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import local_url


def api(settings: Settings) -> Iterator[Finding]:
    """Check the API's readiness endpoint, which covers Postgres and Kafka."""
    local = local_url(settings.api.host, settings.api.port)
    yield _ready("api", local, settings.api.public_url, "/readyz", "PULSE_API__PORT")


def lake(settings: Settings) -> Iterator[Finding]:
    """Check the REST catalog's readiness endpoint, which covers Postgres."""
    local = local_url(settings.lake.host, settings.lake.port)
    yield _ready("lake", local, settings.lake.public_url, "/readyz", "PULSE_LAKE__PORT")


def dagster(settings: Settings) -> Iterator[Finding]:
    """Check whether the UI answers; `pulse status` reports on its runs."""
    local = local_url(settings.dagster.host, settings.dagster.webserver_port)
    yield _ready("dagster", local, settings.dagster.public_url, "/healthz", "PULSE_DAGSTER__WEBSERVER_PORT")


def _ready(service: str, local: str, public: str, path: str, port: str) -> Finding:
    """Ask the service on this host, and if none answers there, the one at its public URL."""
    problems: list[str] = []
    for base in filter(None, (local, public)):
        url = f"{base}{path}"
        try:
            with urlopen(url, timeout=PATIENCE_S):  # noqa: S310 - http or https, by the settings
                absent = f" (and none at {local})" if problems else ""
                return Finding(service, "ready", True, f"{url} answers{absent}")
        except HTTPError as error:
            problems.append(f"{url} answers {error.code}: a service behind it is away")
            break
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            problems.append(f"{url} does not answer: {getattr(reason, 'strerror', None) or reason}")
    host = port.rpartition("__")[0] + "__HOST"
    fix = f"Start it with `pulse up`, or correct {host} and {port}"
    return Finding(service, "ready", False, "; ".join(problems), fix)
