"""How a run of a pipe begins, and why it failed, in the pipe's own row."""

from pulse_resources import postgres

BEGIN = "UPDATE pipes SET begun_at = now(), asked_at = NULL, error = NULL WHERE pipe = %s"
COMPUTES = "UPDATE pipes SET computes = %s WHERE pipe = %s"
# A look between runs says nothing once a run is requested: that one will tell.
ERROR = "UPDATE pipes SET error = %s WHERE pipe = %s AND (asked_at IS NULL OR %s)"


def begin(connection: postgres.Connection, name: str) -> None:
    """Record that a run of a tenant's pipe begins."""
    connection.execute(BEGIN, [name])


def computes(connection: postgres.Connection, name: str, what: str) -> None:
    """Record what a run of a tenant's transform computes, and why."""
    connection.execute(COMPUTES, [what, name])


def failed(
    connection: postgres.Connection, name: str, error: Exception, *, between_runs: bool = False
) -> str:
    """Record why a run of a tenant's pipe failed; returns it.

    Args:
        between_runs: it was no run that failed, but a look at the source.
    """
    told = f"{type(error).__name__}: {error}"[:2000]
    connection.execute(ERROR, [told, name, not between_runs])
    return told
