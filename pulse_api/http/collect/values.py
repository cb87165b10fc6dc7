"""How many JSON values a body holds, counted in its bytes: decoded, the smallest of them takes thirty times
as much memory as was sent.
"""

import numpy as np

from pulse_api.http.problems import ProblemError

_BLOCK = 256 * 1024
"""Bytes looked at together: what is computed from them stays in the processor's cache."""
_SMALLEST = 2
"""Bytes that a value takes at least, with its comma."""


def bound(body: bytes, most: int) -> None:
    """See that decoding a body builds no more than about `most` objects.

    A value counts by the comma before it, an object or array by its bracket, too.

    Raises:
        ProblemError: 413, it holds more.
    """
    if len(body) < most * _SMALLEST:
        return
    # Those in strings count here, too: an upper bound, and most bodies are below it.
    if body.count(b",") + body.count(b"[") + body.count(b"{") < most:
        return
    if _outside_strings(body, most) >= most:
        raise ProblemError(
            413,
            "too-large",
            f"the body holds more than {most:,} JSON values",
            fix="Send fewer events at a time, or events with fewer members and items",
        )


def _outside_strings(body: bytes, enough: int) -> int:
    """Commas and opening brackets that are not in strings; no more are counted than `enough`."""
    if b"\\" in body:  # of the same length, pairs first: a quote that is left begins or ends a string
        body = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    octets = np.frombuffer(body, np.uint8)
    found, inside = 0, np.False_
    for at in range(0, len(octets), _BLOCK):
        block = octets[at : at + _BLOCK]
        in_string = np.logical_xor.accumulate(block == ord('"')) ^ inside
        marks = (block == ord(",")) | (block == ord("[")) | (block == ord("{"))
        found += int(np.count_nonzero(marks & ~in_string))
        if found >= enough:
            break
        inside = in_string[-1]
    return found
