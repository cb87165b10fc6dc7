"""HTTP API and REST catalog as services: they need neither Spark nor Dagster, so they are up long before."""

from pulse_resources.local.service import Service, python, responds
from pulse_resources.process.niceness import FOREGROUND
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import ApiSettings, LakeSettings, local_url

API, LAKE = "pulse_api.http.server", "pulse_api.lake.server"
"""Their modules; by name, since this package must not import them."""


def api_url(settings: Settings) -> str:
    """URL of the API for a client on this machine."""
    return local_url(settings.api.host, settings.api.port)


def lake_url(settings: Settings) -> str:
    """URL of the catalog for a client on this machine."""
    return local_url(settings.lake.host, settings.lake.port)


def api(settings: Settings) -> Service:
    return _service("api", API, settings.api, ("postgres", "kafka", "minio"))


def lake(settings: Settings) -> Service:
    return _service("lake", LAKE, settings.lake, ("postgres", "minio"))


def _service(name: str, module: str, settings: ApiSettings | LakeSettings, needs: tuple[str, ...]) -> Service:
    health = local_url(settings.host, settings.health_port or settings.port)  # answers when the other is full
    return Service(
        name=name,
        address=local_url(settings.host, settings.port),
        command=python(module),
        env={"MALLOC_ARENA_MAX": "2"},
        needs=needs,
        niceness=FOREGROUND,
        ready=responds(f"{health}/readyz"),
    )
