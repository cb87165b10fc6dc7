"""Structure of a JSON body, from its bytes: the number of values, and where elements of an array begin.

Decoded, the smallest value takes thirty times as much memory as was sent, and decoding blocks all other
requests.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pulse_api.http.problems import ProblemError

_BLOCK = 256 * 1024
"""Bytes examined together: intermediate results stay in the processor's cache."""
_COUNTED = 32 * 1024
"""Bytes counted at a time; a thread holds the interpreter for each."""
_Octets: TypeAlias = NDArray[np.uint8]
_Mask: TypeAlias = NDArray[np.bool_]
SPACE = b" \t\n\r"
"""JSON white space."""
_SMALLEST = 2
"""Minimum bytes of a value, with its comma."""

_WORDS = rb"""[^\s"{}\[\],:]++(?:\s++[^\s"{}\[\],:]++)*+"""
_TOKENS = re.compile(
    rb"""(?:[\s\[,:]++|\{(?!\s*+[{\[])|(?:"(?:[^"\\]++|\\.)*+"|[}\]]|"""
    + _WORDS
    + rb""")(?=\s*+(?:[:,}\]]|\Z))){1,1000}+""",
    re.DOTALL,
)
"""Up to a thousand tokens: after a value, or its end, is a colon, a comma, a closing bracket or nothing."""


def bound(body: bytes, most: int) -> None:
    """Check that decoding a body builds no more than about `most` objects.

    A value is counted by the comma before it; an object or array by its bracket, too.

    Raises:
        ProblemError: 413, it holds more.
    """
    if len(body) < most * _SMALLEST:
        return
    # Includes marks in strings: an upper bound, and most bodies are below it.
    if count(body, b",[{", most) < most:
        return
    if _outside_strings(body, most) >= most:
        raise ProblemError(
            413,
            "too-large",
            f"the body holds more than {most:,} JSON values",
            fix="Send less at a time, or what has fewer members and items",
        )


def count(body: bytes, marks: bytes, enough: int) -> int:
    """Occurrences of these bytes, in strings and outside; counting stops at `enough`.

    Counting one byte value in 8 MB takes 3 to 4 ms, which blocks other requests: hence piece by piece.
    """
    count = 0
    for at in range(0, len(body), _COUNTED):
        piece = body[at : at + _COUNTED]
        count += sum(piece.count(mark) for mark in marks)
        if count >= enough:
            break
    return count


def elements(body: bytes, most: int) -> list[bytes] | None:
    """The elements of a JSON array as they were sent; None if the body is not one array.

    Decoding them one by one blocks for less time. They may be invalid JSON.

    Args:
        most: where there are more elements, more than `most` are returned, empty.
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
        or any(body[cut] in b"[{]}" for cut in cuts[1:-1])  # a second array or object
    ):
        return None
    values = [body[start + 1 : end].strip(SPACE) for start, end in pairwise(cuts)]
    return [] if values == [b""] else values


def is_delimited(element: bytes) -> bool:
    """Whether an array's element, valid JSON or not, surely ends where it seems to.

    A missing quote moves the limits of all strings after it, so that other elements become a part of this
    one. Then a string, a word or a closing bracket stands right before something that cannot follow it.
    """
    at = 0
    while (step := _TOKENS.match(element, at)) is not None:  # other threads run between two steps
        at = step.end()
    return at == len(element)


def _outside_strings(body: bytes, enough: int) -> int:
    """Number of commas and opening brackets outside strings; counting stops at `enough`."""
    count = 0
    for _, octets, outside in _blocks(body):
        marks = (octets == ord(",")) | (octets == ord("[")) | (octets == ord("{"))
        count += int(np.count_nonzero(marks & outside))
        if count >= enough:
            break
    return count


def _blocks(body: bytes) -> Iterator[tuple[int, _Octets, _Mask]]:
    """Blocks of a body: offset, bytes, and mask of the bytes outside strings."""
    if b"\\" in body:  # replaced at the same length, pairs first: the quotes that remain delimit strings
        body = body.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    octets = np.frombuffer(body, np.uint8)
    inside = np.False_
    for at in range(0, len(octets), _BLOCK):
        block = octets[at : at + _BLOCK]
        in_string = np.logical_xor.accumulate(block == ord('"')) ^ inside
        yield at, block, ~in_string
        inside = in_string[-1]
