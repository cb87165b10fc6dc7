"""Send events to Pulse.

    with Client(url, key) as client:          one call, one answer: which events were accepted
        result = client.send(events)
    async with AsyncClient(url, key) as client:
        result = await client.send(events)
    buffer = EventBuffer(url, key)            fire and forget: never blocks, never raises
    buffer.send(event)

An event id lands once, however often it is sent: a retry is always safe. The package needs httpx alone, and
imports nothing else of Pulse.
"""

from pulse_client.async_client import AsyncClient
from pulse_client.batching import MAX_BYTES, MAX_EVENTS, Batch, batches
from pulse_client.buffer import EventBuffer
from pulse_client.client import Client
from pulse_client.delivery import Retries
from pulse_client.encoding import EncodedEvent, Event, new_event_id, with_ids
from pulse_client.errors import (
    Forbidden,
    InvalidRequest,
    OverQuota,
    OverRate,
    PulseClientError,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
)
from pulse_client.losses import Loss, Stats
from pulse_client.results import Ignored, SendResult, Verdict
from pulse_client.version import __version__

__all__ = [
    "MAX_BYTES",
    "MAX_EVENTS",
    "AsyncClient",
    "Batch",
    "Client",
    "EncodedEvent",
    "Event",
    "EventBuffer",
    "Forbidden",
    "Ignored",
    "InvalidRequest",
    "Loss",
    "OverQuota",
    "OverRate",
    "PulseClientError",
    "Retries",
    "SendResult",
    "Stats",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Verdict",
    "__version__",
    "batches",
    "new_event_id",
    "with_ids",
]
