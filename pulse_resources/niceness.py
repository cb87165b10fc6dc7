"""Niceness: what computes in the background leaves the processors to those who are waited for."""

import os
from contextlib import suppress
from pathlib import Path

BACKGROUND = 4
"""Beside others that want a processor, it has 40 % of what each of them has."""


def stand_back(pid: int, niceness: int = BACKGROUND) -> None:
    """Have the session that begins with this process want processors less than others do.

    Where the scheduler shares them out among sessions, a process's own niceness counts within its own.
    """
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with suppress(OSError):  # this kernel shares them out among processes
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def begin_session(niceness: int = BACKGROUND) -> None:
    """Make this process a session of its own: what it computes does not count as its parent's.

    Args:
        niceness: as in `stand_back`.

    Raises:
        PermissionError: it leads a session or a process group already.
    """
    os.setsid()
    stand_back(os.getpid(), niceness)
