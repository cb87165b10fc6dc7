"""Origins: the traces that messages came with (W3C Trace Context, in their headers), at most `MOST`."""

import operator
import re
from collections.abc import Iterable
from itertools import chain, islice, zip_longest
from uuid import UUID

from confluent_kafka import Message

from pulse_pipelines.ingest.stages import Origin, TopicDrained
from pulse_resources.tracing import HEADER

_ask_headers = operator.methodcaller("headers")
MOST = 128
"""Origins of a topic in one task, and of a batch: as many as a span has links."""
_SAMPLED = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]")


def headers_of(message: Message) -> Iterable[tuple[str, str | bytes | None]]:
    """Headers of a message; empty if a header name is not valid text, which any producer may send.

    In that case confluent-kafka sets an error but returns a list with holes, caches it, and returns it
    without an error the next time: reading it is a segmentation fault. Python notices the error only in calls
    from C, and hot code calls methods without that check.
    """
    try:
        headers = _ask_headers(message)
    except (ValueError, SystemError):
        message.set_headers([])
        return ()
    return headers if isinstance(headers, list) else ()


class Origins:
    """Collects the origins of one tenant's messages as they are read."""

    def __init__(self, tenant_id: UUID) -> None:
        self._tenant_id = tenant_id
        self._received_ms: dict[bytes, int] = {}

    def note(self, messages: Iterable[Message]) -> None:
        """Collect the origins of messages, until there are `MOST`."""
        if len(self._received_ms) >= MOST:
            return
        for message in messages:
            if (parent := _traceparent(message)) is not None and parent not in self._received_ms:
                self._received_ms[parent] = message.timestamp()[1]
                if len(self._received_ms) == MOST:
                    return

    def collected(self) -> tuple[Origin, ...]:
        """The origins in the order in which they were read."""
        return tuple(Origin(self._tenant_id, parent.decode(), ms) for parent, ms in self._received_ms.items())


def _traceparent(message: Message) -> bytes | None:
    """The traceparent header of a sampled trace; producers may write any header, so its form is checked."""
    for name, value in headers_of(message):
        if name == HEADER and isinstance(value, bytes) and _SAMPLED.fullmatch(value):
            return value
    return None


def chosen(topics: Iterable[TopicDrained]) -> tuple[Origin, ...]:
    """The origins of a batch, each trace once: taken from its topics and tasks in turn, at most `MOST`."""
    in_turn = chain.from_iterable(zip_longest(*(topic.origins for topic in topics)))
    first: dict[tuple[UUID, str], Origin] = {}
    for origin in filter(None, in_turn):
        first.setdefault((origin.tenant_id, origin.traceparent), origin)
    return tuple(islice(first.values(), MOST))
