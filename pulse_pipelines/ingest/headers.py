"""Headers of a message, whatever its producer wrote."""

import operator
from collections.abc import Iterable

from confluent_kafka import Message

_ask_headers = operator.methodcaller("headers")


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
