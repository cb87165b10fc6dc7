"""Roles: what a published schema says that its properties are for, by keywords of Pulse's own at its root.

`"x-pulse-actor": "customer"` names who did what happened, so that behaviour can be summarised;
`"x-pulse-type": "kind"` names what happened, so that events can be counted by it. They refuse no event, and
versions of a schema may differ in them.
"""

from collections.abc import Mapping
from typing import Any

from pulse_resources.errors import UserError

ACTOR = "x-pulse-actor"
EVENT_TYPE = "x-pulse-type"
KINDS = {ACTOR: ("string", "long"), EVENT_TYPE: ("string",)}
"""Kinds of columns that a property may have to play the role."""
_NAMES = {"string": "string", "long": "integer"}


def check_roles(document: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Refuse a role that no declared property can play.

    Args:
        document: a schema.
        kinds: the kind of column of each declared property that has one.

    Raises:
        UserError: it names the keyword by its JSON pointer.
    """
    for keyword in KINDS.keys() & document.keys():
        field, wanted = document[keyword], " or ".join(_NAMES[kind] for kind in KINDS[keyword])
        if not isinstance(field, str) or field not in kinds:
            raise UserError(
                f"/{keyword} names {field!r}, which is no declared property with a column",
                fix=f"Name a property whose type is {wanted}",
            )
        if kinds[field] not in KINDS[keyword]:
            raise UserError(
                f"/{keyword} names {field!r}, whose column is of type {kinds[field]}",
                fix=f"Name a property whose type is {wanted}",
            )


def played_by(document: Mapping[str, Any], role: str) -> str | None:
    """The property that plays a role in a schema that `check_roles` accepted; None when there is none."""
    field = document.get(role)
    return field if isinstance(field, str) else None
