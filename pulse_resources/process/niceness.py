"""Niceness: background work yields the processors to work for which a caller waits."""

import os
from contextlib import suppress
from pathlib import Path

BACKGROUND = 4
"""Gets 40 % of the share of each competing process."""
FOREGROUND = -5
"""Gets three times the share of each of them, if this account may request that."""


def renice(pid: int, niceness: int = BACKGROUND) -> None:
    """Set the niceness of the session that this process leads.

    Only some accounts may lower it: for others a process that was started with more keeps what it has.

    If the scheduler shares processors among sessions, a process's niceness counts only within its session.
    """
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with suppress(OSError):  # this kernel shares them among processes
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def begin_session(niceness: int = BACKGROUND) -> None:
    """Put this process into a session of its own: its computing does not count as its parent's.

    Args:
        niceness: as in `renice`.

    Raises:
        PermissionError: it already leads a session or a process group.
    """
    os.setsid()
    renice(os.getpid(), niceness)
