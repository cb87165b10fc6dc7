"""REST catalog as a service."""

from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Service, python, responds
from pulse_resources.process.niceness import FOREGROUND
from pulse_resources.settings import Settings
from pulse_resources.settings.api_settings import local_url

MODULE = "pulse_api.lake.server"


def url(settings: Settings) -> str:
    """URL of the catalog for a client on this machine."""
    return local_url(settings.lake.host, settings.lake.port)


def health_url(settings: Settings) -> str:
    """URL of its health port, which answers when the main port is full."""
    return local_url(settings.lake.host, settings.lake.health_port or settings.lake.port)


def service(layout: Layout, settings: Settings) -> Service:
    return Service(
        name="lake",
        address=url(settings),
        command=python(MODULE),
        env={"MALLOC_ARENA_MAX": "2"},
        needs=("postgres", "minio"),
        niceness=FOREGROUND,
        ready=responds(f"{health_url(settings)}/readyz"),
    )
