"""Pushed entities: each becomes an event of its dataset, see `domain.entities`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from pulse_api.http.collect import cloudevents
from pulse_api.http.collect.split import Item, serialize_event
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain import entities, json_values
from pulse_pipelines.domain.event import nesting
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.tables.arrow_columns import unusual

DATASET = "entities-of"
"""Pulse's own entry among the headers that say how a body is read (`split.describing`): the dataset."""
OF_SYNC = "part-of-sync"
"""Another such entry: the body is a part of a sync, and may be empty."""
_NAMES: dict[str, str | None] = {
    "/event_id": f"/{entities.ID}",
    f"/{entities.DELETION}": f"/{entities.DELETED}",
    "/timestamp": None,
}


def describing(headers: Mapping[str, str], slug: str, *, of_sync: bool) -> dict[str, str]:
    """Headers for reading a body of a dataset's entities. Raises ProblemError: 415, it holds CloudEvents."""
    media_type = headers.get("content-type", "")
    kind = media_type.strip().lower()
    if cloudevents.is_binary(headers, kind) or kind.startswith(cloudevents.STRUCTURED):
        raise ProblemError(
            415,
            "unsupported-media-type",
            "entities cannot be sent as CloudEvents",
            fix="Send application/json or application/x-ndjson",
        )
    sent = {"content-type": media_type} if media_type else {}
    return {**sent, DATASET: slug, **({OF_SYNC: ""} if of_sync else {})}


def as_events(items: Sequence[Item], slug: str, *, max_bytes: int, max_depth: int) -> list[Item]:
    """Make events of entities, all with one timestamp. An item that is not an entity stays as it is."""
    now = utc_text(datetime.now(UTC), timespec="microseconds")
    odd = set(unusual([item.payload for item in items]))
    records = []
    for place, item in enumerate(items):
        plain = place not in odd
        entity = item.event if plain else None
        if entity is None:
            entity = _decoded(item.payload, max_bytes, max_depth, plain)
        records.append(_record(item, entity, slug, now, plain) if type(entity) is dict else item)
    return records


def _record(item: Item, entity: dict[str, Any], slug: str, now: str, plain: bool) -> Item:
    try:
        return serialize_event(entities.event(entity, slug, now), plain=plain)
    except RecursionError:  # it is too deep, as the validator says
        return item


def _decoded(payload: bytes, max_bytes: int, max_depth: int, plain: bool) -> Any:
    """The decoded payload; None where the validator refuses it anyway, whatever it contains."""
    if len(payload) > max_bytes or nesting(payload) > max_depth:
        return None
    try:
        entity = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    # Numbers must be as they were sent; the decoder that keeps them recurses.
    return entity if plain else json_values.exact(payload)


def translated(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts on events, translated to the entities that they were made of."""
    return [_translated(verdict) for verdict in verdicts]


def _translated(verdict: dict[str, Any]) -> dict[str, Any]:
    pointer = verdict["pointer"]
    if pointer is not None:
        pointer = _NAMES.get(pointer, pointer.removeprefix("/data"))
    detail = verdict["detail"]
    for name, sent in (("event_id", entities.ID), (f"{entities.DELETION} is", f"{entities.DELETED} is")):
        detail = detail.replace(name, sent) if detail.startswith(name) else detail
    return verdict | {"pointer": pointer, "detail": detail}
