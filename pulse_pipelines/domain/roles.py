"""Roles of properties, declared by custom keywords at the root of a published schema.

`"x-pulse-actor": "customer"` names the property with the event's actor, by which behaviour is summarised;
`"x-pulse-type": "kind"` the property with its type, by which events are counted. Roles refuse no event, and
versions of a schema may differ in them.
"""

from collections.abc import Mapping
from typing import Any

from pulse_resources.errors import UserError

ACTOR = "x-pulse-actor"
EVENT_TYPE = "x-pulse-type"
KINDS = {ACTOR: ("string", "long"), EVENT_TYPE: ("string",)}
"""Kinds of columns allowed for the property of a role."""
_NAMES = {"string": "string", "long": "integer"}


def check_roles(document: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Refuse a role of a property that is not declared, or whose column has the wrong kind.

    Args:
        document: a schema.
        kinds: the kinds of columns of the declared properties that have one.

    Raises:
        UserError: a role is not valid; names the keyword by its JSON pointer.
    """
    for keyword in KINDS.keys() & document.keys():
        field, expected = document[keyword], " or ".join(_NAMES[kind] for kind in KINDS[keyword])
        if not isinstance(field, str) or field not in kinds:
            raise UserError(
                f"/{keyword} names {field!r}, which is not a declared property with a column",
                fix=f"Name a property whose type is {expected}",
            )
        if kinds[field] not in KINDS[keyword]:
            raise UserError(
                f"/{keyword} names {field!r}, whose column is of type {kinds[field]}",
                fix=f"Name a property whose type is {expected}",
            )


def played_by(document: Mapping[str, Any], role: str) -> str | None:
    """The property with a role in a schema that `check_roles` accepted; None if there is none."""
    field = document.get(role)
    return field if isinstance(field, str) else None
