"""Types that several endpoints share."""

from datetime import date, datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from pulse_pipelines.domain.event import parse_date
from pulse_pipelines.domain.naming import MAX_NAME, NAME_PATTERN
from pulse_pipelines.query.preview import moment

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)]
"""Display name: see `domain.naming`."""
SchemaAddress = Annotated[
    str,
    StringConstraints(
        pattern=r"^pulse://[a-z][a-z0-9_]{0,62}/[a-z][a-z0-9_]{0,62}/[1-9][0-9]{0,8}$", max_length=200
    ),
]
Moment = Annotated[
    datetime, BeforeValidator(moment), WithJsonSchema({"type": "string", "format": "date-time"})
]
"""Strict RFC 3339; pydantic alone accepts numbers, too."""
Day = Annotated[date, BeforeValidator(parse_date), WithJsonSchema({"type": "string", "format": "date"})]
"""Strict YYYY-MM-DD."""
INT64_MAX = 2**63 - 1
MOST_MEMBERS = 100
"""Members of a body: each that is unknown is an error of its own."""


def _snapshot(value: object) -> object:
    """The number that a text of digits stands for: strict models convert none."""
    is_number = (
        isinstance(value, str) and len(value) <= len(str(INT64_MAX)) and value.isascii() and value.isdigit()
    )
    return int(value) if is_number else value  # type: ignore[call-overload]


SnapshotId = Annotated[
    int,
    BeforeValidator(_snapshot),
    Field(ge=0, le=INT64_MAX),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {"type": ["string", "integer"], "pattern": "^[0-9]{1,19}$", "minimum": 0, "maximum": INT64_MAX},
        mode="validation",
    ),
]
"""Id of a snapshot: given as text, since a client's numbers may be doubles, taken as text or as a number."""
DatasetSlug = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="Slug of one of the tenant's datasets.")
]

SubsetOf = Annotated[
    str | None,
    Query(
        max_length=2_000,
        description="Only the entities for which an expression has a value: `<expression>=<value>`.",
        examples=["continent=Europe"],
    ),
]


class Body(BaseModel):
    """A request's body; unknown members are refused.

    Each member of type list or dict, except dict[str, Any], has a max_length: pydantic lists the error of
    every item, ten seconds of the event loop for a megabyte of them.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, values: Any) -> Any:
        """Check the numbers of members before the members, and accept 7.0 as an integer, as JSON Schema does.

        Raises:
            ValueError: the body, or an object in it, has too many members.
        """
        if not isinstance(values, dict):
            return values
        if len(values) > MOST_MEMBERS:
            raise ValueError(f"has {len(values):,} members, {MOST_MEMBERS:,} are the most")
        for name, field in cls.model_fields.items():
            items = values.get(field.alias or name)
            for most in (getattr(rule, "max_length", None) for rule in field.metadata):
                if most is not None and isinstance(items, dict) and len(items) > most:
                    raise ValueError(
                        f"{field.alias or name} has {len(items):,} members, {most:,} are the most"
                    )
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        }
