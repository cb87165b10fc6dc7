"""Entities: what an entity is on the wire, and when two versions of it are the same.

An entity is a JSON object with an `_id`. On the tenant's topic it is an event whose `event_id` is that id and
whose `data` is the rest; `deleted: true` beside them says that the entity is gone. Root properties that begin
with `_` are about an entity, not of it: they are neither stored nor compared.

A version's *content hash* is BLAKE2b (16 bytes) of its content as canonical JSON, see `canonical`.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import orjson

from pulse_pipelines.domain.bundle import bundled
from pulse_pipelines.domain.event import Rejected
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.shapes import Shapes
from pulse_resources.errors import UserError

ID, DELETED = "_id", "_deleted"
"""Of an entity as it is sent."""
DELETION = "deleted"
"""Member of the event that it becomes."""
SYNC = "sync"
"""Member of the context of a deletion that a full sync sent: its number. Nobody else gives entities one."""
CONTINUATION = r"^\d{1,18}-\d{1,18}$"
"""Where a reader of a log has come to: its generation, and the `_updated` of the last version read."""
HASH_BYTES = 16
EXACT = 2**53
"""From here on a double is not the only number that is written as it."""


def event(entity: Mapping[str, Any], dataset: str, timestamp: str) -> dict[str, Any]:
    """The event that an entity becomes; whether it is a valid one its judge says."""
    found = {
        "event_id": entity.get(ID),
        "dataset": dataset,
        "timestamp": timestamp,
        "data": content(entity),
    }
    if DELETED in entity:
        found[DELETION] = entity[DELETED]
    return found


def deletion_by_sync(entity_id: str, dataset: str, timestamp: str, sync: int) -> dict[str, Any]:
    """The event that says that an entity is gone unless it came since a full sync began."""
    return event({ID: entity_id, DELETED: True}, dataset, timestamp) | {"context": {SYNC: sync}}


def sync_of(context: str) -> int | None:
    """The full sync whose deletion an event is, by its context as JSON text."""
    try:
        found = orjson.loads(context)
    except orjson.JSONDecodeError:
        return None
    sync = found.get(SYNC) if isinstance(found, dict) else None
    return sync if type(sync) is int and 0 < sync < 2**63 else None


def content(data: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that are of the entity."""
    return {name: value for name, value in data.items() if not name.startswith("_")}


def deletion(event: Mapping[str, Any]) -> bool | Rejected:
    """Whether an event of an entity dataset says that the entity is gone."""
    said = event.get(DELETION)
    if said is None or type(said) is bool:
        return bool(said)
    return Rejected(Reason.INVALID_ENVELOPE, f"{DELETION} is neither true nor false", f"/{DELETION}")


def canonical(content: Mapping[str, Any]) -> bytes:
    """JSON in UTF-8 without white space, members sorted by the code points of their names.

    A number that was written with a fraction or an exponent is the nearest double, in its shortest form; one
    that is integral and below 2^53 is that integer, so that 1, 1.0 and 1e0 are the same.
    """
    return orjson.dumps(_plain(content), option=orjson.OPT_SORT_KEYS)


def content_hash(content: Mapping[str, Any]) -> bytes:
    """The content hash of a version."""
    return blake2b(canonical(content), digest_size=HASH_BYTES).digest()


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {name: _plain(member) for name, member in value.items()}
    if kind is list:
        return [_plain(item) for item in value]
    return int(value) if kind is float and -EXACT < value < EXACT and value.is_integer() else value


def check_schema(document: Mapping[str, Any]) -> None:
    """Raises UserError: a JSON Schema cannot be that of entities."""
    root = bundled(document)
    for name in Shapes(root).of(root).members:
        if name.startswith("_"):
            raise UserError(
                f"the schema declares {name!r}, and root properties that begin with _ are not stored",
                fix="Rename it, or leave it out",
            )
