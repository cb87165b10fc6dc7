"""Check whether this home's stack was stopped, instead of waiting for Postgres to time out."""

from pulse_resources.errors import Transient
from pulse_resources.local import ports, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings


def check() -> None:
    """Raises Transient: `pulse up` ran here, its services have ended, and Postgres is not external."""
    settings = load_settings()
    known = state.read(Layout(settings.home))
    if known is None or known.supervised or ports.answers(settings.postgres.host, settings.postgres.port):
        return
    raise Transient(
        f"Pulse is not running in {settings.home}",
        fix="Start it with `pulse up`, or name the folder in which it runs: PULSE_HOME=/path",
    )
