"""Periodic sampling during a measurement."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(look: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call `look` before the block, in a thread while it runs, and once more when it has ended."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(period_s):
            look()

    look()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        look()
