"""TTL cache: a value is read once for all concurrent callers, and kept until it is forgotten or expires."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    read_at: float


class TtlCache(Generic[Key, Value]):
    """Cache of values by key. Use from the event loop; `forget` from any thread.

    Args:
        read: reads a value, in a thread; None means that there is none, and is not cached.
        seconds: lifetime of a value.
        most: maximum number of values; the oldest is evicted first.
    """

    def __init__(self, read: Callable[[Key], Value | None], seconds: float, most: int = 1) -> None:
        self._read = read
        self._seconds = seconds
        self._most = most
        self._entries: dict[Key, _Entry[Value]] = {}
        self._reading: dict[Key, asyncio.Task[Value | None]] = {}
        self._generation = 0
        """Increased by `forget`: a value whose read began in an earlier generation is not cached."""
        self._lock = threading.Lock()

    async def get(self, key: Key, *, afresh: bool = False) -> Value | None:
        """The cached value or, if `afresh`, a value whose read begins now."""
        entry = None if afresh else self._entries.get(key)
        if entry is not None and self._fresh(entry):
            return entry.value
        if afresh and (earlier := self._reading.get(key)) is not None:
            await asyncio.wait([earlier])  # it may have read before the value that this caller needs existed
        return await asyncio.shield(self._reader(key))

    def cached(self, key: Key) -> Value | None:
        """The value, if it is cached; nothing is read."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._fresh(entry) else None

    async def coming(self, key: Key) -> bool:
        """Wait for the read under way; False when there is none."""
        if (task := self._reading.get(key)) is None:
            return False
        await asyncio.wait([task])
        return True

    def _fresh(self, entry: _Entry[Value]) -> bool:
        return time.monotonic() - entry.read_at < self._seconds

    def _reader(self, key: Key) -> "asyncio.Task[Value | None]":
        with self._lock:
            task = self._reading.get(key)
            if task is None:
                task = asyncio.create_task(asyncio.to_thread(self._read_and_keep, key, self._generation))
                self._reading[key] = task
                task.add_done_callback(lambda done: self._ended(key, done))
            return task

    def _read_and_keep(self, key: Key, generation: int) -> Value | None:
        read_at = time.monotonic()
        value = self._read(key)
        if value is not None:
            with self._lock:
                if generation == self._generation:
                    self._entries.pop(key, None)
                    if len(self._entries) >= self._most:
                        self._entries.pop(next(iter(self._entries)))
                    self._entries[key] = _Entry(value, read_at)
        return value

    def _ended(self, key: Key, task: "asyncio.Task[Value | None]") -> None:
        with self._lock:
            if self._reading.get(key) is task:
                del self._reading[key]

    def forget(self, key: Key | None = None) -> None:
        """Drop one value, or all; later callers do not get the result of a read under way, either."""
        with self._lock:
            self._generation += 1
            for entries in (self._entries, self._reading):
                if key is None:
                    entries.clear()
                else:
                    entries.pop(key, None)
