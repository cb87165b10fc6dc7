"""Periodic sampling during a measurement."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(take_sample: Callable[[], None], period_s: float) -> Iterator[None]:
    """Call `take_sample` before the block, in a thread while it runs, and once more when it has ended."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(period_s):
            take_sample()

    take_sample()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        take_sample()
