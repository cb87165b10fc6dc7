"""How a run of a pipe begins and ends, and why it failed, in the pipe's own row.

A request stands until a run that began after it has ended: one whose process was killed is begun again.
"""

import re

from pyspark.errors import PySparkException

from pulse_resources import postgres
from pulse_resources.errors import first_line

BEGIN = "UPDATE pipes SET begun_at = now(), error = NULL, gives_way = false WHERE pipe = %s"
GIVE_WAY = "UPDATE pipes SET gives_way = true WHERE pipe = %s"
OPEN = """
SELECT sync_id, position FROM entity_syncs
WHERE tenant_id = app_tenant() AND pipe = %s AND state = 'open' AND position IS NOT NULL
"""
REQUEST_NEXT = (
    "UPDATE pipes SET asked_at = now() WHERE pipe = %s AND (state = 'active' OR asked_at IS NOT NULL)"
)
END = "UPDATE pipes SET asked_at = NULL WHERE pipe = %s AND asked_at <= begun_at"
COMPUTES = "UPDATE pipes SET computes = %s WHERE pipe = %s"
# A check between runs records nothing once a run is requested: that run will.
ERROR = "UPDATE pipes SET error = %s WHERE pipe = %s AND (asked_at IS NULL OR %s)"
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|[a-z][A-Z]\w*)): ", re.MULTILINE)
"""The exceptions in a stack of Python's."""


def begin(connection: postgres.Connection, name: str) -> None:
    """Record that a run of a tenant's pipe begins."""
    connection.execute(BEGIN, [name])


def gives_way(connection: postgres.Connection, name: str) -> None:
    """Let the tasks of a run of a tenant's pipe know that the run gives up its place."""
    connection.execute(GIVE_WAY, [name])


def open_sync(connection: postgres.Connection, name: str) -> tuple[int, str] | None:
    """The sync that a run of a tenant's pipe has left open for the next, and its position so far."""
    row = connection.execute(OPEN, [name]).fetchone()
    return None if row is None else (int(row[0]), str(row[1]))


def request_next(connection: postgres.Connection, name: str) -> None:
    """Request the run that continues where one of a tenant's pipe gave way, unless the pipe was paused."""
    connection.execute(REQUEST_NEXT, [name])


def ended(connection: postgres.Connection, name: str) -> None:
    """Record that a run of a tenant's pipe has ended, and with it the request for it."""
    connection.execute(END, [name])


def computes(connection: postgres.Connection, name: str, line: str) -> None:
    """Record what a run of a tenant's transform computes, and why."""
    connection.execute(COMPUTES, [line, name])


def failed(
    connection: postgres.Connection, name: str, error: Exception, *, between_runs: bool = False
) -> str:
    """Record why a run of a tenant's pipe failed; returns it.

    Args:
        between_runs: a check of the source failed, not a run.
    """
    reason = f"{type(error).__name__}: {error_text(error)}"[:2000]
    connection.execute(ERROR, [reason, name, not between_runs])
    if not between_runs:
        ended(connection, name)
    return reason


def remark(connection: postgres.Connection, name: str, text: str) -> None:
    """Record a problem of a tenant's pipe although its run succeeded."""
    connection.execute(ERROR, [text, name, True])


def error_text(error: Exception) -> str:
    """The text of an error for tenants; for a failed task the exception's name, without stack and values."""
    if not isinstance(error, PySparkException):
        return str(error)
    raised = _RAISED.findall(str(error))
    return f"a task failed with {raised[-1]}; the log of the run has more" if raised else first_line(error)
