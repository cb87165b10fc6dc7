"""pgoutput: the keys of changed rows, decoded from messages of logical replication (protocol 1)."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pulse_resources.errors import Terminal

Key = tuple[str, ...]
MOST_KEYS = 1_000_000
"""Beyond as many changed rows it is cheaper to read all of them, and a run's memory is bounded."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class Found:
    """Changes found in a slot."""

    keys: set[Key] = field(default_factory=set)
    """Keys of rows that changed."""
    whole: bool = False
    """The keys do not say what changed: all rows are to be read."""
    messages: int = 0
    end: str | None = None
    """LSN of the end of the last transaction ..."""
    committed_at: datetime | None = None
    """... and when it was committed, by the source's clock."""


def decoded(messages: Iterable[bytes], key: Key) -> Found:
    """Decode the keys in messages.

    Raises:
        Terminal: a message lacks the key of its row.
    """
    found, places = Found(), dict[int, list[int]]()
    for message in messages:
        found.messages += 1
        kind, read = message[:1], Reader(message, 1)
        if kind == b"R":
            relation, columns = read.relation()
            if set(key) <= set(columns):
                places[relation] = [columns.index(name) for name in key]
            else:  # a column of the key had another name then
                found.whole = True
        elif kind in b"IUD" and not found.whole:
            relation = read.number(">I")
            for values in read.tuples():
                found.keys.add(_key([values[place] for place in places[relation]]))
            found.whole = len(found.keys) > MOST_KEYS
        elif kind == b"T":
            found.whole = True
        elif kind == b"C":
            read.skip(9)
            end, moment = read.number(">Q"), read.number(">q")
            found.end = f"{end >> 32:X}/{end & 0xFFFFFFFF:X}"
            found.committed_at = _EPOCH + timedelta(microseconds=moment)
        if found.whole:
            found.keys.clear()
    return found


def _key(values: list[str | None]) -> Key:
    if None in values:
        raise Terminal(
            "the source's log has a change without the key of its row",
            fix="Bring all rows anew: pulse pipe reset",
        )
    return tuple(str(value) for value in values)


class Reader:
    """Cursor over the bytes of a message."""

    def __init__(self, message: bytes, at: int) -> None:
        self._message, self._at = message, at

    def number(self, form: str) -> int:
        """Read a number by a `struct` format."""
        (found,) = struct.unpack_from(form, self._message, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def skip(self, count: int) -> None:
        """Skip bytes."""
        self._at += count

    def text(self) -> str:
        """Read a zero-terminated text."""
        end = self._message.index(0, self._at)
        found = self._message[self._at : end].decode()
        self._at = end + 1
        return found

    def relation(self) -> tuple[int, list[str]]:
        """Read a table's OID and the names of its columns."""
        number = self.number(">I")
        self.text(), self.text()
        self.skip(1)
        columns = []
        for _ in range(self.number(">H")):
            self.skip(1)
            columns.append(self.text())
            self.skip(8)
        return number, columns

    def tuples(self) -> Iterator[list[str | None]]:
        """Read the rows of a change: the old one, if it is sent, and the new one."""
        while self._at < len(self._message):
            self.skip(1)
            values: list[str | None] = []
            for _ in range(self.number(">H")):
                kind = self.number(">B")
                if kind != ord("t"):
                    values.append(None)
                    continue
                length = self.number(">I")
                values.append(self._message[self._at : self._at + length].decode())
                self.skip(length)
            yield values
