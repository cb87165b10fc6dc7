"""A watchdog: ends this process when its work stands still.

Whatever hangs (a client that waits for a wall clock which was set back, a server that never answers) would
hold its lease, and the place of a run, for ever. To whoever launched the process it has died.
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
    """Kill this process if the block takes longer than `seconds`, counted anew whenever it reports progress.

    Args:
        work: for the log.

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
