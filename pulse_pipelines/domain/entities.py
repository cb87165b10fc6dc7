"""Entities: their form on the wire, and when two versions of an entity are equal.

An entity is a JSON object with an `_id`. On the tenant's topic it is an event whose `event_id` is that id and
whose `data` is the rest; `deleted: true` beside them marks a deletion. Root properties that begin with `_`
are metadata, not content: they are neither stored nor compared.

A version's *content hash* is BLAKE2b (16 bytes) of its content as canonical JSON, see `canonical`.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

from pulse_pipelines.domain.event import Rejected
from pulse_pipelines.domain.json_values import Number
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.bundle import bundled
from pulse_pipelines.domain.schemas.shapes import Shapes
from pulse_resources.errors import UserError

ID, DELETED = "_id", "_deleted"
"""Properties of an entity as it is sent."""
DELETION = "deleted"
"""Member of the entity's event that marks a deletion."""
SYNC = "sync"
"""Member of the context of a full sync's deletion: the sync's number. Other events of entities lack it."""
CONTINUATION = r"^[0-9]{1,18}-[0-9]{1,18}$"
"""A reader's position in a log: its generation, and the `_updated` of the last version read."""
HASH_BYTES = 16
EXACT = 2**53
"""From here on several integers share one double."""


def event(entity: Mapping[str, Any], dataset: str, timestamp: str) -> dict[str, Any]:
    """Build the event of an entity; whether the event is valid is left to its validator."""
    envelope = {
        "event_id": entity.get(ID),
        "dataset": dataset,
        "timestamp": timestamp,
        "data": content(entity),
    }
    if DELETED in entity:
        envelope[DELETION] = entity[DELETED]
    return envelope


def deletion_by_sync(entity_id: str, dataset: str, timestamp: str, sync: int) -> dict[str, Any]:
    """Build the event of a full sync's deletion, void if the entity arrived since the sync began."""
    return event({ID: entity_id, DELETED: True}, dataset, timestamp) | {"context": {SYNC: sync}}


def sync_of(context: str) -> int | None:
    """The number of the full sync that sent a deletion, from its context as JSON text; else None."""
    try:
        members = orjson.loads(context)
    except orjson.JSONDecodeError:
        return None
    sync = members.get(SYNC) if isinstance(members, dict) else None
    return sync if type(sync) is int and 0 < sync < 2**63 else None


def content(data: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that are content."""
    return {name: value for name, value in data.items() if not name.startswith("_")}


def deletion(event: Mapping[str, Any]) -> bool | Rejected:
    """Whether an event of an entity dataset is a deletion."""
    deletion = event.get(DELETION)
    if deletion is None or type(deletion) is bool:
        return bool(deletion)
    return Rejected(Reason.INVALID_ENVELOPE, f"{DELETION} is neither true nor false", f"/{DELETION}")


def canonical(content: Mapping[str, Any]) -> bytes:
    """Canonical JSON: UTF-8, without white space, members sorted by the code points of their names.

    A number that is written with a fraction or an exponent is the nearest double, in its shortest form; an
    integral one below 2^53 becomes that integer, so that 1, 1.0 and 1e0 are equal. One that a double
    rounds is its digits, as an integer without zeros at its ends, and a power of ten: 123456789012345678e-17.
    """
    return orjson.dumps(plain(content), option=orjson.OPT_SORT_KEYS)


def content_hash(canonical: bytes) -> str:
    """The content hash of a version, in hexadecimal, from its content as canonical JSON."""
    return blake2b(canonical, digest_size=HASH_BYTES).hexdigest()


AS_THEY_ARE = frozenset((str, int, bool, type(None)))
"""Types of decoded values that are in canonical form as they are."""


def plain(value: Any) -> Any:
    """A decoded value whose numbers are those of its canonical form."""
    kind = type(value)
    if kind is dict:
        return {
            name: member if type(member) in AS_THEY_ARE else plain(member) for name, member in value.items()
        }
    if kind is list:
        return [item if type(item) in AS_THEY_ARE else plain(item) for item in value]
    if kind is Number:
        if not value.is_exact:
            return orjson.Fragment(value.canonical)
        value, kind = float(value), float
    return int(value) if kind is float and -EXACT < value < EXACT and value.is_integer() else value


def check_schema(document: Mapping[str, Any]) -> None:
    """Raise UserError if a JSON Schema cannot be that of entities."""
    root = bundled(document)
    for name in Shapes(root).of(root).members:
        if name.startswith("_"):
            raise UserError(
                f"the schema declares {name!r}, and root properties that begin with _ are not stored",
                fix="Rename it, or leave it out",
            )
