"""Pushed entities: each becomes an event of its dataset, see `domain.entities`."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from pulse_api.http.collect import cloudevents
from pulse_api.http.collect.split import Item, anew
from pulse_api.http.problems import ProblemError
from pulse_pipelines.domain import entities
from pulse_pipelines.domain.event import nesting, suspicious

DATASET = "entities-of"
"""Pulse's own entry among the headers that say how a body is read (`split.describing`): the dataset."""
_NAMES: dict[str, str | None] = {
    "/event_id": f"/{entities.ID}",
    f"/{entities.DELETION}": f"/{entities.DELETED}",
    "/timestamp": None,
}


def describing(headers: Mapping[str, str], slug: str) -> dict[str, str]:
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
    return {**({"content-type": media_type} if media_type else {}), DATASET: slug}


def as_events(items: Iterable[Item], slug: str, *, max_bytes: int, max_depth: int) -> list[Item]:
    """The events of entities, all of one moment; an item that is not an entity is left for the validator."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    found = []
    for item in items:
        entity = _decoded(item.payload, max_bytes, max_depth) if item.event is None else item.event
        is_one = type(entity) is dict
        found.append(anew(entities.event(entity, slug, now), plain=item.plain) if is_one else item)
    return found


def _decoded(payload: bytes, max_bytes: int, max_depth: int) -> Any:
    """The decoded payload; None where the validator refuses it anyway, whatever it contains."""
    if len(payload) > max_bytes or nesting(payload) > max_depth:
        return None
    try:
        entity = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    # The validator must see integers as they were sent.
    return json.loads(payload) if suspicious(payload) else entity


def told(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts on events, translated to the entities that they were made of."""
    return [_told(verdict) for verdict in verdicts]


def _told(verdict: dict[str, Any]) -> dict[str, Any]:
    pointer = verdict["pointer"]
    if pointer is not None:
        pointer = _NAMES.get(pointer, pointer.removeprefix("/data"))
    detail = verdict["detail"]
    for name, sent in (("event_id", entities.ID), (f"{entities.DELETION} is", f"{entities.DELETED} is")):
        detail = detail.replace(name, sent) if detail.startswith(name) else detail
    return verdict | {"pointer": pointer, "detail": detail}
