"""Syncs: the parts that make up one, and the chain that says that none is missing.

A sender numbers the parts of a sync by ids of its own: each names the part before it, the first and the last
say so. A *full* sync brings every entity that there is: once all of it has settled, what it did not bring is
deleted.
"""

from dataclasses import dataclass
from enum import StrEnum

from pulse_resources.errors import UserError


class State(StrEnum):
    """The state of a sync."""

    OPEN = "open"
    """Parts come."""
    SENT = "sent"
    """All of them are on the topic."""
    HELD = "held"
    """A person decides whether it may delete what it did not bring."""
    DELETING = "deleting"
    """Its deletions are on their way."""
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    """A person said that it deletes nothing."""
    SUPERSEDED = "superseded"
    """Another full sync began before it had ended: it deletes nothing."""
    FAILED = "failed"
    """Some of its events are lost: it deletes nothing."""


@dataclass(frozen=True)
class Part:
    """What a request says of the sync that it is a part of."""

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
                fix="Say is_first=true with the first part alone",
                sequence=self.sequence_id,
                request=self.request_id,
            )


def held_because(entities: int, absent: int, brought: int, nameless: int, deletes_most: float) -> str | None:
    """Why a person has to decide about a full sync; None: it may delete what it did not bring.

    Args:
        entities: that there are.
        absent: of these, what it did not bring.
        brought: entities that came.
        nameless: refused events without an `_id`, so that their entities are unknown.
        deletes_most: the share of them that it may delete.
    """
    if not absent:
        return None
    if not brought:
        return f"it brought nothing, and would delete all {entities:,} entities"
    if nameless:
        return f"{nameless:,} of what it brought was refused and has no _id: it may be among what is absent"
    if absent > deletes_most * entities:
        return f"it would delete {absent:,} of {entities:,} entities, and {deletes_most:.0%} is the most"
    return None
