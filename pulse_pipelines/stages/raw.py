"""The raw zone read back: events as they were received, with the positions that they were received at."""

import io
from collections.abc import Iterator

import orjson
from isal import igzip

from pulse_pipelines.stages.conform import Message
from pulse_resources import object_store

_EVENT = b',"event":'


def content(path: str) -> bytes:
    """A raw object as it is stored.

    Raises:
        OSError: the object store failed; FileNotFoundError: the object is gone.
    """
    with object_store.file_system().open_input_stream(object_store.key(path), compression=None) as source:
        found: bytes = source.read()
    return found


def messages(packed: bytes) -> Iterator[Message]:
    """The events of a raw object, as `conform.raw_lines` wrote them; payloads that are no JSON are left out.

    Raises:
        OSError: the object is damaged.
    """
    with igzip.open(io.BytesIO(packed)) as lines:  # type: ignore[no-untyped-call]
        for line in lines:
            head, event, payload = line.partition(_EVENT)
            if event:
                origin = orjson.loads(head + b"}")
                # Without the brace that closes the line, and its end.
                yield Message(origin["partition"], origin["offset"], origin["received_ms"], payload[:-2])
