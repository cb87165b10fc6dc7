"""Fire and forget: events wait in memory, and a thread sends them in batches."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from pulse_client.batching import MAX_BYTES, MAX_EVENTS, Batch
from pulse_client.client import Client
from pulse_client.encoding import EncodedEvent, Event, encode
from pulse_client.errors import PulseClientError, Unavailable
from pulse_client.losses import CLOSED, FULL, REJECTED, UNSENT, Loss, Losses, Stats, refusals
from pulse_client.results import SendResult, Verdict
from pulse_client.words import clean

_log = logging.getLogger("pulse_client")
_PAUSE_S = 5.0
"""Pause after a batch whose attempts have all failed; then they begin again."""
_FULL = "the buffer is full: Pulse does not answer, or takes events more slowly than they come"
_CLOSED = "the buffer is closed"
_UNSENT = "the buffer was closed before they could be sent"


class EventBuffer:
    """A bounded queue in memory, and a thread that sends it; threads may share it.

    `send` neither blocks nor raises: an event that does not fit is lost, counted and reported. While Pulse
    does not answer, events wait, and the thread tries again. A process that is killed loses what waits: send
    events that must not be lost with `Client`. Close the buffer to send the rest; a normal exit closes it, and
    waits for up to ten seconds.
    After a fork the child has an empty buffer and a thread of its own, and the parent sends what waited.

    Args:
        url: address of the API.
        key: a key of the tenant with the scope `collect`.
        max_events: events in memory.
        max_bytes: bytes of events in memory.
        max_age: seconds after which an event is sent even if its batch is not full.
        on_loss: receives each Loss, mostly in the buffer's thread; without it they are logged as warnings.
        client: makes the client from url, key and the keyword argument `sleep`.
    """

    _client: Client | None

    def __init__(
        self,
        url: str,
        key: str,
        *,
        max_events: int = 10_000,
        max_bytes: int = 16 * 1024 * 1024,
        max_age: float = 1.0,
        on_loss: Callable[[Loss], None] | None = None,
        client: Callable[..., Client] = Client,
    ) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._on_loss = on_loss
        self._new_client: Callable[[], Client] = partial(client, url, key, sleep=self._pause)
        self._closing = False
        self._reset()
        self._client = self._new_client()  # a wrong address is an error here and now
        _buffers.add(self)

    def _reset(self) -> None:
        """Begin with nothing: at first, and in the child of a fork, since the parent has the thread."""
        self._changed = threading.Condition()
        self._abandoned = threading.Event()
        self._thread: threading.Thread | None = None
        self._client = None
        self._queue: deque[tuple[EncodedEvent, float]] = deque()
        self._queue_bytes = 0
        self._waiting = self._waiting_bytes = 0
        self._settled = self._flush_until = 0
        self._accepted = self._dead_lettered = 0
        self._losses = Losses()

    def __enter__(self) -> EventBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, event: Event) -> None:
        """Queue one event; it is serialized now, so that later changes of it are not sent."""
        try:
            encoded = encode(event)
            with self._changed:
                self._enqueue(encoded)
        except Exception as error:  # whatever it is, the caller's work continues
            with self._changed:
                self._losses.add(Loss(1, REJECTED, clean(repr(error))))

    def flush(self, timeout: float = 10.0) -> bool:
        """Send what waits without waiting for its age; False: after so many seconds some still waits."""
        with self._changed:
            target = self._flush_until = self._settled + self._waiting
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._settled >= target, timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Send what waits, and end the thread; False: after so many seconds some waited, and is lost."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        with self._changed:
            self._abandoned.set()
            unsent = self._waiting
            self._queue.clear()
            self._queue_bytes = 0
            self._losses.add(Loss(unsent, UNSENT, _UNSENT))
            self._settle(unsent, self._waiting_bytes)
        self._report()
        return not unsent

    @property
    def stats(self) -> Stats:
        with self._changed:
            return Stats(
                waiting=self._waiting,
                accepted=self._accepted,
                dead_lettered=self._dead_lettered,
                refused=self._losses.refused,
                dropped=self._losses.dropped,
                waiting_bytes=self._waiting_bytes,
            )

    def _enqueue(self, encoded: EncodedEvent | Verdict) -> None:
        if self._closing:
            self._losses.add(Loss(1, CLOSED, _CLOSED))
            return
        self._start()
        if isinstance(encoded, Verdict):
            self._losses.add(refusals((encoded,)))
        elif not self._has_room_for(encoded):
            self._losses.add(Loss(1, FULL, _FULL))
        else:
            self._queue.append((encoded, time.monotonic()))
            self._queue_bytes += len(encoded.payload)
            self._waiting += 1
            self._waiting_bytes += len(encoded.payload)
        if len(self._queue) == 1 or self._is_batch() or self._losses:
            self._changed.notify_all()

    def _has_room_for(self, encoded: EncodedEvent) -> bool:
        fits = self._waiting_bytes + len(encoded.payload) <= self._max_bytes
        return fits and self._waiting < self._max_events

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="pulse-client", daemon=True)
            thread.start()  # raises when the interpreter ends
            self._thread = thread

    def _run(self) -> None:
        client = self._client or self._new_client()
        try:
            while self._wait_for_work():
                while (batch := self._take()) is not None:
                    self._deliver(client, batch)
                    self._report()
                self._report()
        finally:
            client.close()

    def _wait_for_work(self) -> bool:
        """Wait until events are due or losses are to be reported; False: closed, and nothing waits."""
        with self._changed:
            while not (self._closing or self._is_due() or self._losses):
                self._changed.wait(self._max_age - self._age() if self._queue else None)
            return bool(self._queue) or not self._closing

    def _age(self) -> float:
        return time.monotonic() - self._queue[0][1]

    def _is_due(self) -> bool:
        """Whether a batch is full, old, or to be flushed, or the buffer is closing."""
        if not self._queue:
            return False
        is_flushed = self._settled < self._flush_until
        return self._closing or is_flushed or self._is_batch() or self._age() >= self._max_age

    def _is_batch(self) -> bool:
        return len(self._queue) >= MAX_EVENTS or self._queue_bytes >= MAX_BYTES

    def _take(self) -> Batch | None:
        """The next batch, if one is due."""
        with self._changed:
            if not self._is_due():
                return None
            batch = Batch()
            while self._queue and batch.has_room_for(self._queue[0][0], MAX_EVENTS, MAX_BYTES):
                event, _ = self._queue.popleft()
                self._queue_bytes -= len(event.payload)
                batch.add(event)
            return batch

    def _deliver(self, client: Client, batch: Batch) -> None:
        """Send a batch until Pulse has answered, however long that takes, or `close` gives up."""
        while not self._abandoned.is_set():
            try:
                outcome: SendResult | Loss = client.send_batch(batch)
            except Unavailable as error:
                if not self._abandoned.is_set():
                    _log.warning("Pulse is unavailable, %d events wait: %s", self.stats.waiting, error)
                    self._report()
                self._abandoned.wait(max(_PAUSE_S, error.retry_after or 0.0))
                continue
            except PulseClientError as error:
                outcome = Loss(len(batch.events), REJECTED, str(error))
            except Exception as error:  # the thread must live
                outcome = Loss(len(batch.events), REJECTED, clean(repr(error)))
            self._note(batch, outcome)
            return

    def _note(self, batch: Batch, outcome: SendResult | Loss) -> None:
        with self._changed:
            if self._abandoned.is_set():
                return  # `close` has counted them as lost
            if isinstance(outcome, Loss):
                self._losses.add(outcome)
            else:
                self._accepted += outcome.accepted
                self._dead_lettered += outcome.dead_lettered
                self._losses.add(refusals(outcome.verdicts))
            self._settle(len(batch.events), sum(len(event.payload) for event in batch.events))

    def _settle(self, events: int, size: int) -> None:
        self._waiting -= events
        self._waiting_bytes -= size
        self._settled += events
        self._changed.notify_all()

    def _report(self) -> None:
        """Hand losses to the caller's function, outside of the lock."""
        with self._changed:
            losses = self._losses.take()
        for loss in losses:
            try:
                if self._on_loss is not None:
                    self._on_loss(loss)
                else:
                    _log.warning("%d events were lost (%s): %s", loss.events, loss.reason, loss.detail)
            except Exception:
                _log.exception("on_loss failed")

    def _pause(self, seconds: float) -> None:
        """Wait between attempts; raises Unavailable once `close` has given up."""
        self._report()
        if self._abandoned.wait(seconds):
            raise Unavailable(_UNSENT)


_buffers: weakref.WeakSet[EventBuffer] = weakref.WeakSet()


def _close_all() -> None:
    for buffer in list(_buffers):
        buffer.close()


def _reset_all() -> None:
    for buffer in list(_buffers):
        buffer._reset()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_reset_all)
