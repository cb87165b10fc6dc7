"""Types that several endpoints share."""

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, StringConstraints

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""For people; no control characters, which Postgres or a terminal would choke on."""
SchemaAddress = Annotated[
    str,
    StringConstraints(
        pattern=r"^pulse://[a-z][a-z0-9_]{0,62}/[a-z][a-z0-9_]{0,62}/[1-9][0-9]{0,8}$", max_length=200
    ),
]
DatasetSlug = Annotated[
    str, Path(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="Slug of one of the tenant's datasets.")
]


class Body(BaseModel):
    """A request's body: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid", strict=True)
