"""Filters of claim runs: two bytes per digest, which give the places in the run where a digest can be.

The range of a run's heads is cut into buckets of some dozen digests. The filter stores the place at which
each bucket begins, and for each digest the sixteen bits of its head that follow the bits of the bucket
number. A digest of the run is always found at its own place; of others about one in thousands is a false
positive, which only a lookup in the run itself tells apart.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from pulse_pipelines.tables.digests import Digests, Indices, Mask

BUCKET = 8
"""Digests per bucket: this many to twice as many."""
HEAD_BITS, PRINT_BITS = 64, 16
HEAD = struct.Struct("<4Q")
"""Checksum of the rest, first and last head of the run, and the shift from a head to its bucket in bits."""
ALIGNED = 8


class Torn(ValueError):  # noqa: N818 - nothing fails: the run itself is searched
    """A filter whose bytes do not match its checksum or its run."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Indices where digests can be in several runs, as columns."""

    digest: Indices
    """Index of the digest among those that were looked up."""
    run: Indices
    """Index of the run, in the order of the filters."""
    start: Indices
    """The first candidate place in the run, ..."""
    count: Indices
    """... and the number of places."""

    def __len__(self) -> int:
        return len(self.digest)

    def __getitem__(self, rows: Indices | Mask | slice) -> Self:
        return type(self)(self.digest[rows], self.run[rows], self.start[rows], self.count[rows])


def make(run: Digests) -> bytes:
    """Build the filter of a non-empty run; the result is deterministic."""
    first, last = int(run.heads[0]), int(run.heads[-1])
    below = run.heads - run.heads[0]
    bucket_bits = max(1, len(run) // BUCKET).bit_length() - 1
    shift = min(max(PRINT_BITS, (last - first).bit_length() - bucket_bits), HEAD_BITS - 1)
    buckets = _buckets(first, last, shift)
    starts = np.searchsorted(below, np.arange(buckets, dtype=np.uint64) << np.uint64(shift))
    fences = np.append(starts, len(run)).astype("<u4")
    prints = (below >> np.uint64(shift - PRINT_BITS)).astype("<u2")
    body: bytes = HEAD.pack(0, first, last, shift)[ALIGNED:] + fences.tobytes() + prints.tobytes()
    body += bytes(-len(body) % ALIGNED)
    return HEAD.pack(xxh3_64_intdigest(body), first, last, shift)[:ALIGNED] + body


def check(packed: bytes) -> None:
    """Raise Torn if these are not the bytes that `make` returned."""
    if len(packed) < HEAD.size or HEAD.unpack_from(packed)[0] != xxh3_64_intdigest(
        memoryview(packed)[ALIGNED:]
    ):
        raise Torn


class Filters:
    """Filters of runs with disjoint, ascending ranges, searched as one."""

    def __init__(self, memory: npt.NDArray[np.uint8], runs: Iterable[tuple[int, int]]) -> None:
        """Wrap filters without copying them.

        Args:
            memory: the filters, concatenated.
            runs: per run the number of ids, and the size of its filter in bytes.

        Raises:
            Torn: they do not belong to these runs.
        """
        rows = list(_layout(memory, runs))
        self._first, self._last, self._shift = (
            np.array([row[column] for row in rows], np.uint64) for column in range(3)
        )
        self._fences, self._prints, self._ids = (
            np.array([row[column] for row in rows], np.intp) for column in range(3, 6)
        )
        if (self._first[1:] <= self._last[:-1]).any():
            raise Torn
        self._words, self._halves = memory.view("<u4"), memory.view("<u2")

    def candidates(self, digests: Digests) -> Candidates:
        """Find the places where the digests of a run can be.

        Raises:
            Torn: the filters are corrupt.
        """
        run = np.searchsorted(self._first, digests.heads, "right") - 1
        inside = np.flatnonzero((run >= 0) & (digests.heads <= self._last[run]))
        run = run[inside]
        below, shift = digests.heads[inside] - self._first[run], self._shift[run]
        fence = self._fences[run] + (below >> shift).astype(np.intp)
        start, end = (self._words[fence + n].astype(np.intp) for n in (0, 1))
        # The first bucket is never empty: so no fence is 0, as all would be in a file that lost its content.
        if (start > end).any() or (end > self._ids[run]).any() or (end == 0).any():
            raise Torn
        prints = (below >> (shift - np.uint64(PRINT_BITS))).astype("<u2")
        base = self._prints[run]
        start, end = start + base, end + base
        at = self._bound(start, end - start, prints, before=np.less)
        matching = np.flatnonzero((at < end) & (self._halves.take(at, mode="clip") == prints))
        at, run, prints = at[matching], run[matching], prints[matching]
        after = self._bound(at, end[matching] - at, prints, before=np.less_equal)
        return Candidates(inside[matching], run, at - base[matching], after - at)

    def _bound(
        self, first: Indices, count: Indices, prints: npt.NDArray[np.uint16], before: np.ufunc
    ) -> Indices:
        """Bisect each range by print: the first place that is not `before` the searched print, or its end."""
        at, remaining = first.copy(), count.copy()
        for _ in range(int(count.max(initial=1)).bit_length()):  # the same steps for all, without a branch
            half = remaining >> 1
            at += half * before(self._halves.take(at + (half - 1), mode="clip"), prints)
            remaining -= half
        beyond: Mask = before(self._halves.take(at, mode="clip"), prints) & (count > 0)
        return at + beyond


def _buckets(first: int, last: int, shift: int) -> int:
    return ((last - first) >> shift) + 1


def _layout(memory: npt.NDArray[np.uint8], runs: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """Per run its first and last head and its shift; the offsets of its fences and prints; its ids."""
    at = 0
    for ids, size in runs:
        if at + size > len(memory) or size < HEAD.size:
            raise Torn
        _, first, last, shift = HEAD.unpack(memory[at : at + HEAD.size].tobytes())
        if first > last or not PRINT_BITS <= shift < HEAD_BITS:
            raise Torn
        fences = at + HEAD.size
        prints = fences + 4 * (_buckets(first, last, shift) + 1)
        length = prints + 2 * ids - at
        if length + -length % ALIGNED != size:
            raise Torn
        yield first, last, shift, fences // 4, prints // 2, ids
        at += size
