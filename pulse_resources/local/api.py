"""The HTTP API as a service; it needs no Spark and no Dagster, so it is up long before them."""

from pulse_resources.api_settings import local_url
from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Service, python, responds
from pulse_resources.niceness import FOREGROUND
from pulse_resources.settings import Settings

MODULE = "pulse_api.http.server"
"""Named, not imported: nothing here knows the front doors."""


def url(settings: Settings) -> str:
    """The API's address for a client on this machine."""
    return local_url(settings.api.host, settings.api.port)


def health_url(settings: Settings) -> str:
    """Where it says how it is, however full its own port is."""
    return local_url(settings.api.host, settings.api.health_port or settings.api.port)


def service(layout: Layout, settings: Settings) -> Service:
    return Service(
        name="api",
        address=url(settings),
        command=python(MODULE),
        env={"MALLOC_ARENA_MAX": "2"},
        needs=("postgres", "kafka", "minio"),
        niceness=FOREGROUND,
        ready=responds(f"{health_url(settings)}/readyz"),
    )
