"""Syncs: the parts that make up one, and the chain that says that none is missing.

A sender numbers the parts of a sync by ids of its own: each part names the part before it, and the
first and the last are marked. A *full* sync contains every entity that exists: once all of it has settled,
entities missing from it are deleted.
"""

from dataclasses import dataclass
from enum import StrEnum

from pulse_resources.errors import UserError


class SyncState(StrEnum):
    """The state of a sync."""

    OPEN = "open"
    """Parts come."""
    SENT = "sent"
    """All of them are on the topic."""
    HELD = "held"
    """A person decides whether it may delete the entities missing from it."""
    DELETING = "deleting"
    """Its deletions are on their way."""
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    """A person decided that it deletes nothing."""
    SUPERSEDED = "superseded"
    """Another full sync began before it had ended: it deletes nothing."""
    FAILED = "failed"
    """Some of its events are lost: it deletes nothing."""


@dataclass(frozen=True)
class Part:
    """The members of a request that place it in a sync."""

    sequence_id: str
    request_id: str
    previous_request_id: str | None
    is_full: bool
    is_first: bool
    is_last: bool

    def __post_init__(self) -> None:
        """Raises UserError: the first part of a sync follows none, every other one does."""
        if self.is_first == (self.previous_request_id is not None):
            raise UserError(
                "the first part of a sync has no previous_request_id, and every other part has one",
                fix="Send is_first=true with the first part only",
                sequence=self.sequence_id,
                request=self.request_id,
            )


def approval_reason(entities: int, absent: int, sent: int, nameless: int, deletes_most: float) -> str | None:
    """Why a person has to decide about a full sync; None: it may delete the entities missing from it.

        Args:
            entities: number of entities that exist.
            absent: number of these that are missing from the sync.
    sent: number of entities in the sync.
            nameless: refused events without an `_id`, so that their entities are unknown.
            deletes_most: the share of them that it may delete.
    """
    if not absent:
        return None
    if not sent:
        return f"it brought nothing, and would delete all {entities:,} entities"
    if nameless:
        return f"{nameless:,} of its entities were refused without an _id: they may be among the absent ones"
    if absent > deletes_most * entities:
        return f"it would delete {absent:,} of {entities:,} entities, and {deletes_most:.0%} is the most"
    return None
