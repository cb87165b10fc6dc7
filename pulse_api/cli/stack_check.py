"""Check whether this home's stack runs, instead of waiting for Postgres to time out."""

import shlex

from pulse_resources.errors import Transient
from pulse_resources.home import no_installation
from pulse_resources.local import ports, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings


def check() -> None:
    """Do nothing if commands can continue: the stack runs here, or Postgres is external.

    Raises:
        UserError: no stack was ever started here.
        Transient: `pulse up` ran here, and its services have ended.
    """
    settings = load_settings()
    stack_state = state.read(Layout(settings.home))
    if stack_state is None and "postgres" not in settings.model_fields_set:
        raise no_installation(elsewhere())
    if (
        stack_state is None
        or stack_state.supervised
        or ports.answers(settings.postgres.host, settings.postgres.port)
    ):
        return
    raise Transient(
        f"Pulse is not running in {settings.home}",
        fix=f"Start it with `pulse up`, or name the folder in which it runs: {elsewhere()}",
    )


def elsewhere() -> str:
    """The assignments of PULSE_HOME that name running stacks, or an example if none runs."""
    named = [f"PULSE_HOME={shlex.quote(str(home))}" for home in state.homes()]
    return " or ".join(named) or "PULSE_HOME=/path"
