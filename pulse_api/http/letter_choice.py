"""Choices of dead letters in requests: by a filter, or by their ids."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, StringConstraints, Tag

from pulse_api.http.models import Body, Moment
from pulse_pipelines.dead_letters import Filter
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.requests import MAX_LETTERS

MAX_RESOLVED = 10_000
"""Maximum letters that one request may replay or discard; a cursor continues."""

DatasetName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
Filtered = Annotated[str, StringConstraints(max_length=2_000, pattern=r"^[^\x00]*$")]
LetterId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}-[0-9]{1,18}$")]
CursorText = Annotated[str, StringConstraints(max_length=200)]


class LetterFilter(Body):
    """Open dead letters that fit all members of the filter; an empty filter fits all."""

    dataset: Filtered | None = Field(
        default=None, description="The dataset that the event named; empty: it named none."
    )
    reason: Reason | None = Field(default=None, strict=False)
    place: Filtered | None = Field(
        default=None,
        description="JSON pointer of what is wrong, with `*` for numbers of items, as groups have it; empty: "
        "there is none.",
        examples=["/data/items/*/price"],
    )
    since: Moment | None = Field(default=None, strict=False, description="Dead letters since this time.")
    until: Moment | None = Field(default=None, strict=False, description="Dead letters before this time.")

    def filter(self) -> Filter:
        return Filter(self.dataset, self.reason, self.since, self.until, self.place)


class ByIds(Body):
    """Letters by their ids."""

    ids: list[LetterId] = Field(min_length=1, max_length=MAX_LETTERS, examples=[["0-17", "1-4"]])
    dry_run: bool = Field(default=False, description="Show what would happen; change nothing.")

    def choice(self) -> dict[str, Any]:
        """The arguments of `replay` and `discard` that say which letters, and how."""
        return {"chosen": self.ids, "dry_run": self.dry_run}


class ByFilter(Body):
    """Letters that fit a filter, the oldest first."""

    filter: LetterFilter
    dry_run: bool = Field(default=False, description="Show what would happen; change nothing.")
    limit: int = Field(
        default=MAX_LETTERS, ge=1, le=MAX_RESOLVED, description="Maximum number of dead letters to process."
    )
    cursor: CursorText | None = Field(default=None, description="`next_cursor` of the previous answer.")

    def choice(self) -> dict[str, Any]:
        """The arguments of `replay` and `discard` that say which letters, and how."""
        chosen = self.filter.filter()
        return {"chosen": chosen, "dry_run": self.dry_run, "limit": self.limit, "after": self.cursor}


Version = Annotated[int, Field(ge=1, le=2**31 - 1)]
_VERSION = Field(
    default=None,
    description="A version that the events' dataset follows or followed: the events are published as its.",
)


class ReplayByIds(ByIds):
    schema_version: Version | None = _VERSION


class ReplayByFilter(ByFilter):
    schema_version: Version | None = _VERSION


def _by(body: Any) -> str | None:
    """Discriminator of the two forms of a body; None if it is neither or both."""
    if isinstance(body, ByIds | ByFilter):
        return "ByIds" if isinstance(body, ByIds) else "ByFilter"
    if not isinstance(body, dict) or ("ids" in body) == ("filter" in body):
        return None
    return "ByIds" if "ids" in body else "ByFilter"


_EITHER = Discriminator(
    _by,
    custom_error_type="either",
    custom_error_message="must be a JSON object with either ids or filter, which say which dead letters",
)
Chosen = Annotated[Annotated[ByIds, Tag("ByIds")] | Annotated[ByFilter, Tag("ByFilter")], _EITHER]
Replayed = Annotated[
    Annotated[ReplayByIds, Tag("ByIds")] | Annotated[ReplayByFilter, Tag("ByFilter")], _EITHER
]
