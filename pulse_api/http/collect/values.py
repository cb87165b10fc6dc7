"""What a body holds, told by its bytes: how many JSON values, and where the elements of an array begin.

Decoded, the smallest value takes thirty times as much memory as was sent; and whoever decodes holds up all
others until he is done.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pulse_api.http.problems import ProblemError

_BLOCK = 256 * 1024
"""Bytes looked at together: what is computed from them stays in the processor's cache."""
_COUNTED = 32 * 1024
"""Bytes counted at a time, for which a thread keeps the interpreter to itself."""
_Octets: TypeAlias = NDArray[np.uint8]
_Mask: TypeAlias = NDArray[np.bool_]
SPACE = b" \t\n\r"
"""What JSON takes for white space."""
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
    if count(body, b",[{", most) < most:
        return
    if _outside_strings(body, most) >= most:
        raise ProblemError(
            413,
            "too-large",
            f"the body holds more than {most:,} JSON values",
            fix="Send fewer events at a time, or events with fewer members and items",
        )


def count(body: bytes, marks: bytes, enough: int) -> int:
    """How many of these bytes there are, in strings and outside; after `enough` no more are counted.

    Counting one kind in 8 MB takes 3 to 4 ms, and nobody else is answered meanwhile: hence piece by piece.
    """
    found = 0
    for at in range(0, len(body), _COUNTED):
        piece = body[at : at + _COUNTED]
        found += sum(piece.count(mark) for mark in marks)
        if found >= enough:
            break
    return found


def elements(body: bytes, most: int) -> list[bytes]:
    """The elements of a JSON array, as they were sent: each to be decoded by itself, which holds up less.

    Args:
        most: where there are more, more than so many are given, empty.

    Raises:
        ProblemError: 400, no array begins and ends with the body. Elements may be no JSON.
    """
    deep, cuts = 0, []
    for at, octets, outside in _blocks(body):
        opened = ((octets == ord("[")) | (octets == ord("{"))) & outside
        closed = ((octets == ord("]")) | (octets == ord("}"))) & outside
        depth = deep + np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64)
        ends = (depth == 0) & closed | (depth == 1) & (octets == ord(",")) & outside
        ends |= (depth == 1) & opened
        cuts += (np.flatnonzero(ends) + at).tolist()
        deep = int(depth[-1])
        if len(cuts) > most + 1 and not any(body[cut] in b"[{]}" for cut in cuts[1:]):
            return [b""] * (len(cuts) - 1)
    whole = body.strip(SPACE)
    if (
        deep
        or len(cuts) < 2
        or whole[:1] + whole[-1:] != b"[]"
        or body[cuts[0] : cuts[-1] + 1] != whole
        or any(body[cut] in b"[{]}" for cut in cuts[1:-1])  # another one begins or ends between them
    ):
        raise ProblemError(400, "malformed", "the body is not JSON: it is not one array")
    found = [body[start + 1 : end].strip(SPACE) for start, end in pairwise(cuts)]
    return [] if found == [b""] else found


def _outside_strings(body: bytes, enough: int) -> int:
    """Commas and opening brackets that are not in strings; no more are counted than `enough`."""
    found = 0
    for _, octets, outside in _blocks(body):
        marks = (octets == ord(",")) | (octets == ord("[")) | (octets == ord("{"))
        found += int(np.count_nonzero(marks & outside))
        if found >= enough:
            break
    return found


def _blocks(body: bytes) -> Iterator[tuple[int, _Octets, _Mask]]:
    """Pieces of a body: where each begins, its bytes, and which of them are not in strings."""
    if b"\\" in body:  # of the same length, pairs first: a quote that is left begins or ends a string
        body = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    octets = np.frombuffer(body, np.uint8)
    inside = np.False_
    for at in range(0, len(octets), _BLOCK):
        block = octets[at : at + _BLOCK]
        in_string = np.logical_xor.accumulate(block == ord('"')) ^ inside
        yield at, block, ~in_string
        inside = in_string[-1]
