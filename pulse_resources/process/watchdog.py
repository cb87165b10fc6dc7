"""Watchdog: kills this process when its work makes no progress.

A hanging process (a client that waits for a wall clock which was set back, a server that never answers) would
hold its lease, and its run slot, permanently. The launcher sees the kill as an ordinary death of the process.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("pulse.watchdog")


@contextmanager
def watched(work: str, seconds: float) -> Iterator[Callable[[], None]]:
    """Kill this process unless the block ends, or reports progress, within `seconds` each time.

    Args:
        work: description for the log.

    Yields:
        The function by which the block reports progress.
    """
    progress, over = threading.Event(), threading.Event()

    def watch() -> None:
        while progress.wait(seconds):
            progress.clear()
            if over.is_set():
                return
        _log.error("%s hangs: its process is ended after %g s without progress", work, seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    try:
        yield progress.set
    finally:
        over.set()
        progress.set()
