"""Gzip: files that are unpacked as they are read, within bounds."""

import gzip
import io
import zlib
from typing import Any, BinaryIO

from pulse_resources.errors import UserError

MOST_INFLATED = 200
INFLATED_FREELY = 64 * 1024 * 1024
"""Bytes up to which a gzip file may hold any multiple of its own."""


def unpacked(stream: BinaryIO, name: str) -> BinaryIO:
    """The content of a file, unpacked if its name ends with .gz; reading raises UserError: it is damaged."""
    return io.BufferedReader(_Inflated(stream), 2**20) if name.endswith(".gz") else stream


class _Inflated(io.RawIOBase):
    """What a gzip file holds; one that holds absurdly much more than it has bytes is refused."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._taken, self._given = packed, 0, 0
        self._file = gzip.GzipFile(fileobj=self)  # which only reads

    def read(self, size: int = -1) -> bytes:
        """Bytes as they are packed."""
        piece = self._packed.read(size)
        self._taken += len(piece)
        return piece

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes as they were before they were packed."""
        try:
            size = self._file.readinto(buffer)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            detail = f"the gzip is damaged within its first {self._taken:,} bytes: {error}"
            raise UserError(detail) from None
        if size == 0 and self._taken == 0:  # even of nothing a gzip has 20 bytes
            raise UserError("the gzip is damaged: it is empty")
        self._given += size
        if self._given > max(INFLATED_FREELY, MOST_INFLATED * self._taken):
            raise UserError(f"the file is more than {MOST_INFLATED} times larger than its gzip")
        return size
