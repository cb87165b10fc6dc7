"""Niceness: what computes in the background leaves the processors to what somebody waits for."""

import os
from contextlib import nullcontext, suppress
from pathlib import Path

BACKGROUND = 4
"""Beside others that want a processor, it has 40 % of what each of them has."""
FOREGROUND = -5
"""It has three times as much as each of them, where this account may ask for that."""


def renice(pid: int, niceness: int = BACKGROUND) -> None:
    """Set the niceness of the session that this process leads; one below 0 only where the account may.

    Where the scheduler shares them out among sessions, a process's own niceness counts within its own.
    """
    with suppress(PermissionError) if niceness < 0 else nullcontext():
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with suppress(OSError):  # this kernel shares them out among processes
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def begin_session(niceness: int = BACKGROUND) -> None:
    """Make this process a session of its own: what it computes does not count as its parent's.

    Args:
        niceness: as in `renice`.

    Raises:
        PermissionError: it leads a session or a process group already.
    """
    os.setsid()
    renice(os.getpid(), niceness)
