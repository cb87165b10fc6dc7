"""A cache that may be cleared while other threads fill it."""

import os
import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Resettable(Generic[P, T]):
    """Function that makes a value once per arguments, like `functools.cache`.

    It differs in `cache_clear`, which waits for a value that is being made and drops it, too. Otherwise a
    thread that read the settings before they changed would keep its value after everyone had dropped theirs.
    """

    def __init__(self, make: Callable[P, T]) -> None:
        self._make = make
        self._values: dict[tuple[object, ...], T] = {}
        self._parents_values: list[dict[tuple[object, ...], T]] = []
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # a thread that is not in the child may hold it
        update_wrapper(self, make)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> T:
        key = (*arguments, *sorted(options.items())) if options else arguments
        try:
            return self._values[key]
        except KeyError:
            pass
        with self._lock:
            if key not in self._values:
                self._values[key] = self._make(*arguments, **options)
            return self._values[key]

    def cache_clear(self) -> list[T]:
        """Drop all values; returns them, to be closed."""
        with self._lock:
            dropped, self._values = self._values, {}
        return list(dropped.values())

    def renew_in_children(self) -> None:
        """Let each forked process make values of its own.

        It keeps its parent's values unused: closing one may wait for a lock that a thread of the parent held.
        """
        os.register_at_fork(after_in_child=self._leave_values)

    def _leave_values(self) -> None:
        self._parents_values.append(self._values)
        self._values = {}

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()
