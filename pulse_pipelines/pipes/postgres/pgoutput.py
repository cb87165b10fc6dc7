"""pgoutput: the keys of changed rows, decoded from messages of logical replication (protocol 1)."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pulse_resources.errors import Terminal

Key = tuple[str, ...]
MOST_KEYS = 1_000_000
"""Beyond as many changed rows it is cheaper to read all of them, and a run's memory is bounded."""
MOST_KEY_CHARACTERS = 64 * 1024 * 1024
"""Likewise: as many keys are passed to the tasks of a run."""
_NUMBER = struct.Struct(">I").unpack_from
_COUNT = struct.Struct(">H").unpack_from
_BEGIN = struct.Struct(">17xI").unpack_from
_END = struct.Struct(">10xQq").unpack_from
_CHANGES = frozenset(b"IUD")
_RELATION, _TRUNCATE, _BEGINS, _COMMIT, _DELETE, _NEW, _TEXT, _UNCHANGED = b"RTBCDNtu"
_OF_IDENTITY = 1
"""Flag of a column: it is in what the log has of a row that was updated or deleted."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class Transaction(NamedTuple):
    """A transaction in a log."""

    number: int
    """Its id, modulo 2^32."""
    ended: int
    """Where in the log it ends."""
    micros: int
    """When it was committed by the source's clock, in microseconds since 2000."""

    @property
    def lsn(self) -> str:
        """Where it ends, as Postgres writes it."""
        return f"{self.ended >> 32:X}/{self.ended & 0xFFFFFFFF:X}"

    @property
    def committed_at(self) -> datetime:
        """When it was committed, by the source's clock."""
        return _EPOCH + timedelta(microseconds=self.micros)


@dataclass
class LogChanges:
    """Changes found in a slot."""

    keys: set[Key] = field(default_factory=set)
    """Keys of rows that changed."""
    whole: bool = False
    """The keys do not show what changed: all rows have to be read."""
    messages: int = 0
    transactions: list[Transaction] = field(default_factory=list)
    """In the order in which they were committed."""

    @property
    def end(self) -> str | None:
        """LSN of the end of the last transaction ..."""
        return self.transactions[-1].lsn if self.transactions else None

    @property
    def committed_at(self) -> datetime | None:
        """... and when it was committed, by the source's clock."""
        return self.transactions[-1].committed_at if self.transactions else None


class _Form(NamedTuple):
    """Where the key is in a table's rows."""

    is_key: tuple[bool, ...]
    """Whether each column is in the key, up to the last one that is."""
    order: tuple[int, ...] | None
    """Order of these columns in the key; None: as in the row."""


def decoded(messages: Iterable[bytes], key: Key, table: int) -> LogChanges:
    """Decode the keys in messages.

    Args:
        table: its OID. A person may have added other tables to the publication.

    Raises:
        Terminal: a message lacks the key of its row.
    """
    changes, form, size, number = LogChanges(), _Form((), None), 0, 0
    keys = changes.keys
    for message in messages:
        changes.messages += 1
        kind = message[0]
        if kind in _CHANGES:
            if changes.whole:
                continue
            (relation,) = _NUMBER(message, 1)
            if relation != table:
                continue
            for changed_key in _keys(message, form):
                if changed_key not in keys:
                    keys.add(changed_key)
                    size += sum(map(len, changed_key))
            changes.whole = len(keys) > MOST_KEYS or size > MOST_KEY_CHARACTERS
        elif kind == _RELATION:
            relation, columns = _relation(message)
            if relation != table:
                continue
            if set(key) <= {name for name, of_identity in columns if of_identity}:
                form = _form([name for name, _ in columns], key)
            else:  # a column of the key had another name then, or the log had another identity of rows
                changes.whole = True
        elif kind == _TRUNCATE:
            changes.whole |= table in struct.unpack_from(f">{_NUMBER(message, 1)[0]}I", message, 6)
        elif kind == _BEGINS:
            (number,) = _BEGIN(message, 0)
        elif kind == _COMMIT:
            changes.transactions.append(Transaction(number, *_END(message, 0)))
        if changes.whole:
            keys.clear()
    return changes


def _keys(message: bytes, form: _Form) -> Iterator[Key]:
    """The keys of a change: of the old row, if it is sent, and of the new one. Other columns are skipped.

    A value that is stored apart and did not change is in the old row only.
    """
    at, end, values = 5, len(message), list[str]()
    while at < end:
        is_last = message[at] == _NEW or message[0] == _DELETE
        (columns,) = _COUNT(message, at + 1)
        at += 3
        old, values = values, []
        for is_key in form.is_key:
            if message[at] != _TEXT:
                if is_key:
                    if message[at] != _UNCHANGED or not old:
                        raise Terminal(
                            "the source's log has a change without the key of its row",
                            fix="Read all rows again: pulse pipe reset",
                        )
                    values.append(old[len(values)])
                at += 1
                continue
            start = at + 5
            at = start + _NUMBER(message, at + 1)[0]
            if is_key:
                values.append(message[start:at].decode())
        yield tuple(values) if form.order is None else tuple([values[place] for place in form.order])
        if is_last:
            return
        for _ in range(len(form.is_key), columns):
            at += 5 + _NUMBER(message, at + 1)[0] if message[at] == _TEXT else 1


def _form(columns: Sequence[str], key: Key) -> _Form:
    places = [columns.index(name) for name in key]
    ascending = sorted(places)
    order = None if places == ascending else tuple(ascending.index(place) for place in places)
    return _Form(tuple(place in places for place in range(ascending[-1] + 1)), order)


def _relation(message: bytes) -> tuple[int, list[tuple[str, bool]]]:
    """A table's OID and its columns: their names, and whether they are in the identity of its rows."""
    (relation,) = _NUMBER(message, 1)
    at = message.index(0, message.index(0, 5) + 1) + 2  # schema, name, replica identity
    (count,) = _COUNT(message, at)
    at += 2
    columns = []
    for _ in range(count):
        end = message.index(0, at + 1)
        columns.append((message[at + 1 : end].decode(), bool(message[at] & _OF_IDENTITY)))
        at = end + 9
    return relation, columns
