"""Batches: the events of one request, and the bounds of a request."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pulse_client.encoding import CLOUDEVENTS, LINES, EncodedEvent, Event, encode
from pulse_client.results import Verdict

try:  # pulse-client[fast]
    from isal import igzip
except ImportError:
    igzip = None  # type: ignore[assignment, unused-ignore]

MAX_EVENTS = 500
MAX_BYTES = 2 * 1024 * 1024
"""Bytes of a request before compression. The API takes 8 MiB and 10,000 events: smaller requests share its
turns better, and proxies in between have limits of their own."""
_GZIP = 16 + zlib.MAX_WBITS


@dataclass
class Batch:
    """Events of one request, which have one media type."""

    events: list[EncodedEvent] = field(default_factory=list)
    refusals: list[Verdict] = field(default_factory=list)
    """Events between them that cannot be sent."""
    size: int = 0
    """Bytes of the body before compression."""
    media_type: str = LINES

    def has_room_for(self, event: EncodedEvent, max_events: int, max_bytes: int) -> bool:
        """Whether the event may join; an empty batch takes any, however large."""
        if not self.events:
            return True
        fits = self.size + len(event.payload) <= max_bytes and len(self.events) < max_events
        return fits and event.media_type == self.media_type

    def add(self, event: EncodedEvent) -> None:
        if not self.events:
            self.media_type = event.media_type
        self.events.append(event)
        self.size += len(event.payload) + 1

    def body(self) -> bytes:
        """The body of the request, compressed with gzip."""
        payloads = [event.payload for event in self.events]
        if self.media_type == CLOUDEVENTS:
            return compress(b"[" + b",".join(payloads) + b"]")
        return compress(b"\n".join(payloads))


def batches(
    events: Iterable[Event], *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
) -> Iterator[Batch]:
    """Encode events and group them by request, in order, while they are read."""
    batch = Batch()
    for index, event in enumerate(events):
        encoded = encode(event, index)
        if isinstance(encoded, Verdict):
            batch.refusals.append(encoded)
            continue
        if not batch.has_room_for(encoded, max_events, max_bytes):
            yield batch
            batch = Batch()
        batch.add(encoded)
    if batch.events or batch.refusals:
        yield batch


def compress(body: bytes) -> bytes:
    """The body as gzip, at the level that costs least."""
    if igzip is not None:
        return bytes(igzip.compress(body, compresslevel=1))
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()
