"""The raw zone: events as they were received, one JSON document per line, in gzipped objects.

An object holds the events of a dataset that one task read of one hour, by the broker's clock, under
`dt=YYYY-MM-DD/hr=HH/`. The events of each day are a separate gzip member of it, whose place is recorded in
`raw_objects`, so that a day is read without the others.

A line is the event's origin (partition, offset, append time) and its payload: unchanged as `event` if it is
JSON, in base64 as `bytes` if not. Backfills, erasures and reconciliation read these lines.
"""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip, isal_zlib
from isal.igzip_lib import IsalError

from pulse_pipelines.tables.written_files import RawPart
from pulse_resources import object_store, postgres

REGISTER = """
INSERT INTO raw_objects (tenant_id, path, slug, day, events, start, bytes, batch_id)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
SUFFIX = ".jsonl.gz"
LINE = "_raw"
"""Column that carries the line of a row until the files are written."""
UNRESOLVED = "_unresolved"
"""In paths, the dataset of events that name no existing one."""
_GZIP_LEVEL = 1
_EVENT = b',"event":'
_PLACE = b'{"partition":%d,"offset":%d,'
_BYTES = pa.large_binary()
_PARTITION, _OFFSET, _RECEIVED, _PAYLOAD, _END, _NOTHING = (
    pa.scalar(text, _BYTES)
    for text in (b'{"partition":', b',"offset":', b',"received_ms":', _EVENT, b"}\n", b"")
)


class Message(NamedTuple):
    """One Kafka message: `received_ms` is the broker's append time."""

    partition: int
    offset: int
    received_ms: int
    payload: bytes


def register(connection: postgres.Connection, tenant_id: UUID, batch: str, parts: Iterable[RawPart]) -> None:
    """Record parts of raw objects, in the transaction that makes them part of the raw zone."""
    with connection.cursor() as cursor:
        cursor.executemany(
            REGISTER,
            [(tenant_id, p.path, p.slug, p.day, p.events, p.start, p.bytes, batch) for p in parts],
        )


def lines(messages: Sequence[Message]) -> pa.LargeBinaryArray:
    """The lines of messages whose payloads are JSON."""
    if not messages:
        return pa.array([], _BYTES)
    partitions, offsets, received, payloads = zip(*messages, strict=True)
    events = pa.array(payloads, _BYTES)
    if _has_breaks(events):
        # Line breaks occur only between JSON tokens, so replacing them by spaces keeps the event the same.
        events = pa.array([p.replace(b"\n", b" ").replace(b"\r", b" ") for p in payloads], _BYTES)
    return pc.binary_join_element_wise(
        _PARTITION,
        _texts(partitions),
        _OFFSET,
        _texts(offsets),
        _RECEIVED,
        _texts(received),
        _PAYLOAD,
        events,
        _END,
        _NOTHING,
    )


def _texts(numbers: Sequence[int]) -> pa.LargeBinaryArray:
    return pa.array(numbers, pa.int64()).cast(pa.large_string()).cast(_BYTES)


def _has_breaks(events: pa.LargeBinaryArray) -> bool:
    characters = np.frombuffer(events.buffers()[2] or b"", np.uint8)
    return any((characters == character).any() for character in b"\n\r")


def line_of_bytes(message: Message) -> bytes:
    """The line of a message whose payload is not JSON."""
    origin = {"partition": message.partition, "offset": message.offset, "received_ms": message.received_ms}
    return orjson.dumps({**origin, "bytes": base64.b64encode(message.payload).decode()}) + b"\n"


def pack(lines: "Iterable[bytes | pa.Buffer]") -> bytes:
    """The content of an object with these lines."""
    packer = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, 31)
    return b"".join([*map(packer.compress, lines), packer.flush()])


def content(path: str) -> bytes:
    """Read an object as it is stored, compressed.

    Raises:
        OSError: the object store failed; FileNotFoundError: the object is gone.
    """
    with object_store.file_system().open_input_stream(object_store.key(path), compression=None) as source:
        content: bytes = source.read()
    return content


def part(path: str, start: int, length: int) -> bytes:
    """Read `length` bytes of an object from `start` on, or fewer if it ends before. Raises as `content`."""
    with object_store.file_system().open_input_file(object_store.key(path)) as source:
        size = min(length, source.size() - start)
        content: bytes = source.read_at(size, start) if size > 0 else b""
    return content


def unpack(packed: bytes) -> Iterator[bytes]:
    """The lines of an object. Raises OSError: it is damaged."""
    try:
        with igzip.open(io.BytesIO(packed)) as content:  # type: ignore[no-untyped-call]
            yield from content
    except (EOFError, IsalError) as error:  # type: ignore[misc]  # neither is an OSError
        raise OSError(f"its compression is damaged: {error}") from error


def messages(packed: bytes) -> Iterator[Message]:
    """The messages of an object whose payloads are JSON. Raises OSError: it is damaged."""
    for line in unpack(packed):
        head, event, payload = line.partition(_EVENT)
        if event:
            yield _message(orjson.loads(head + b"}"), payload[:-2])


def find(packed: bytes, partition: int, offset: int) -> Message | None:
    """The message of a partition and offset in an object, or None. Raises OSError: the object is damaged."""
    begins = _PLACE % (partition, offset)
    line = next((line for line in unpack(packed) if line.startswith(begins)), None)
    return None if line is None else message(line, lambda _: True)


def message(line: bytes, select: Callable[[bytes], bool]) -> Message | None:
    """The message of a line; None if its payload is JSON and not `select`, which is called before decoding,
    with the payload and the end of the line."""
    head, event, payload = line.partition(_EVENT)
    if not event:
        origin = orjson.loads(line)
        return _message(origin, base64.b64decode(origin["bytes"]))
    return _message(orjson.loads(head + b"}"), payload[:-2]) if select(payload) else None


def _message(origin: dict[str, int], payload: bytes) -> Message:
    return Message(origin["partition"], origin["offset"], origin["received_ms"], payload)
