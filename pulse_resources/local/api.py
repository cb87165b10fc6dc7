"""HTTP API as a service; it needs neither Spark nor Dagster, so it is up long before them."""

from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Service, python, responds
from pulse_resources.process.niceness import FOREGROUND
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import local_url

MODULE = "pulse_api.http.server"
"""By name, since this package must not import the API."""


def url(settings: Settings) -> str:
    """URL of the API for a client on this machine."""
    return local_url(settings.api.host, settings.api.port)


def health_url(settings: Settings) -> str:
    """URL of its health port, which answers when the main port is full."""
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
