"""Places in a source's log, which are the positions of pipes, and the changes read there."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from pulse_pipelines.pipes.postgres.pgoutput import LogChanges


class Place(NamedTuple):
    """A place in a source's log; as text the position of a pipe."""

    system: str
    timeline: str
    lsn: str
    published: str
    """Fingerprint of the publication."""
    shape: str
    """Fingerprint of the table's form, as it was when its rows were last read."""
    mark: str = ""
    """That the publication bears since; of positions of an earlier version there is none."""

    @classmethod
    def parse(cls, position: str) -> "Place | None":
        """Parse a position; None if it is malformed."""
        parts = position.split()
        return cls(*parts) if len(parts) in (len(cls._fields), len(cls._fields) - 1) else None

    def __str__(self) -> str:
        return " ".join(self)


@dataclass(frozen=True)
class Slot:
    """A slot as the source shows it."""

    wal_bytes: int
    """Bytes of the log that the source keeps for it."""
    wal_status: str
    """By `pg_replication_slots`: reserved, extended, unreserved, or lost."""


@dataclass(frozen=True)
class SlotRead:
    """The changes that were read from a slot."""

    changes: LogChanges
    place: Place
    """The place up to which it was read."""
    as_of: datetime
    """A moment: everything committed before it was read."""
    since: str
    """LSN from which on it was read."""

    def within(self, snapshot: str) -> "SlotRead":
        """The part of it that a later snapshot shows: up to the first change that the snapshot does not show.

        A commit is in the log before others see it: under a synchronous standby it waits for that in between.
        What follows it in the log is read now, and once more by the next run.

        Args:
            snapshot: as `txid_current_snapshot` writes it.
        """
        _, text, within = snapshot.split(":")
        beyond, open_ = int(text), set(map(int, filter(None, within.split(","))))
        before = self.since
        for transaction in self.changes.transactions:
            # Of ids modulo 2^32 the one that is nearest.
            number = beyond + (transaction.number - beyond + 2**31) % 2**32 - 2**31
            if number >= beyond or number in open_:
                as_of = min(self.as_of, transaction.committed_at)
                return replace(self, place=self.place._replace(lsn=before), as_of=as_of)
            before = transaction.lsn
        return self
