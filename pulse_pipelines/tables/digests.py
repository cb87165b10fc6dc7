"""Digests of event ids: 16 bytes each, in sorted columns with vectorised lookup.

A digest is the xxh3-128 of the id under its dataset's secret seed: without the seed no one can construct
colliding ids, and the probability that any two of 10^12 ids collide by chance is 10^-15.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_128_digest

BYTES = 16
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Digests:
    """Digests in two columns of equal length; a *run* is sorted and without repeats."""

    heads: Words
    """The first eight bytes of each; few digests share them."""
    tails: Words
    """The last eight bytes."""

    @classmethod
    def of(cls, ids: "pa.Array | pa.ChunkedArray | Iterable[str]", seed: int) -> Self:
        """Compute the digests of event ids, in the order of the ids.

        Args:
            seed: of the dataset, a signed 64-bit integer, as stored in Postgres.
        """
        if isinstance(ids, pa.Array | pa.ChunkedArray):
            texts = ids.cast(pa.binary()).to_pylist()
        else:
            texts = [text.encode() for text in ids]
        seed &= 2**64 - 1
        packed = b"".join([xxh3_128_digest(text, seed) for text in texts])
        words = np.frombuffer(packed, ">u8").reshape(-1, 2)
        return cls(words[:, 0].astype("<u8"), words[:, 1].astype("<u8"))

    @classmethod
    def unpacked(cls, packed: Any) -> Self:
        """Read what `packed` wrote, or an array of its words; shares its memory."""
        words = packed if isinstance(packed, np.ndarray) else np.frombuffer(packed, "<u8")
        half = len(words) // 2
        return cls(words[:half], words[half:])

    @classmethod
    def joined(cls, parts: "Iterable[Digests]") -> Self:
        """Concatenate several."""
        heads, tails = [], []
        for part in parts:
            heads.append(part.heads)
            tails.append(part.tails)
        return cls(_concatenated(heads), _concatenated(tails))

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, places: Indices | Mask | slice) -> Self:
        return type(self)(self.heads[places], self.tails[places])

    def packed(self) -> bytes:
        """All heads, then all tails, little-endian."""
        return self.heads.tobytes() + self.tails.tobytes()

    def blobs(self) -> pa.Array:
        """As an array of binary values, each in the byte order of the hash."""
        words = np.stack([self.heads, self.tails], 1).astype(">u8")
        of_size = pa.Array.from_buffers(pa.binary(BYTES), len(self), [None, pa.py_buffer(words.tobytes())])
        return of_size.cast(pa.binary())

    def order(self, then: npt.NDArray[np.int64] | None = None) -> Indices:
        """The places of the digests in ascending order; equal ones are ordered by `then`."""
        order = np.argsort(self.heads)
        heads = self.heads[order]
        alike = np.zeros(len(order), np.bool_)  # neighbours with equal heads: a handful, or repeats
        same = heads[1:] == heads[:-1]
        alike[1:] = same
        alike[:-1] |= same
        if alike.any():
            some = order[alike]
            columns = (self.tails[some], self.heads[some])
            order[alike] = some[np.lexsort(columns if then is None else (then[some], *columns))]
        return order

    def repeats(self) -> Mask:
        """Mask of sorted digests that equal their predecessor."""
        mask = np.zeros(len(self), np.bool_)
        mask[1:] = (self.heads[1:] == self.heads[:-1]) & (self.tails[1:] == self.tails[:-1])
        return mask

    def is_zero(self) -> Mask:
        """Mask of the digests that are all zeros."""
        zero: Mask = (self.heads == 0) & (self.tails == 0)
        return zero

    def run(self) -> Self:
        """The digests as a run: sorted, without repeats."""
        ascending = self[self.order()]
        repeats = ascending.repeats()
        return ascending[~repeats] if repeats.any() else ascending

    def within(self, run: "Digests") -> Mask:
        """Mask of the digests of this run that another run contains."""
        mask = np.zeros(len(self), np.bool_)
        if not len(run):
            return mask
        # The other run may be a piece of a large one: a range in which few of these digests are.
        first = int(np.searchsorted(self.heads, run.heads[0], "left"))
        end = int(np.searchsorted(self.heads, run.heads[-1], "right"))
        part = self[first:end]
        if len(run) >= len(part):
            mask[first:end] = part.places_in(run) >= 0
        else:
            places = run.places_in(part)
            mask[first + places[places >= 0]] = True
        return mask

    def places_in(self, run: "Digests") -> Indices:
        """Per digest its place in a run; -1: not in it."""
        if not len(run):
            return np.full(len(self), -1, np.intp)
        at = np.searchsorted(run.heads, self.heads)
        at[at == len(run)] = 0
        alike = run.heads[at] == self.heads
        places = np.where(alike & (run.tails[at] == self.tails), at, -1)
        for index in np.flatnonzero(alike & (places < 0)):  # later digests may have the same head
            place = int(at[index]) + 1
            while place < len(run) and run.heads[place] == self.heads[index]:
                if run.tails[place] == self.tails[index]:
                    places[index] = place
                place += 1
        return places


@dataclass(frozen=True, eq=False)
class ArrivedIds:
    """Event ids of a dataset with their positions in the topic."""

    digests: Digests
    positions: npt.NDArray[np.int64]
    """See `parquet_files.position`."""

    def packed(self) -> bytes:
        """The digests, then the positions."""
        return self.digests.packed() + self.positions.tobytes()

    @classmethod
    def unpacked(cls, parts: Iterable[bytes]) -> Self:
        """Concatenate several packed ones."""
        digests, positions = [], []
        for part in parts:
            words = np.frombuffer(part, "<u8")
            split = len(words) // 3 * 2
            digests.append(Digests.unpacked(words[:split]))
            positions.append(words[split:].view("<i8"))
        return cls(Digests.joined(digests), np.concatenate(positions))


def _concatenated(parts: list[Words]) -> Words:
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)
