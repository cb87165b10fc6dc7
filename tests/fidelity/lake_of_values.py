"""A tenant whose datasets have all values, sent through each door once, and landed by one batch."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx
import orjson
from support.catalog import Guest
from support.http import Api
from support.ingest import Owner, ingest, make_owner

from fidelity.known import OF_ENTITIES
from fidelity.readings import Invalid, parsed
from fidelity.zoo import PROPERTIES, RICH, ZOO, Value
from pulse_pipelines import registry
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter, replay
from pulse_pipelines.domain.dataset import DatasetKind
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys

PLACES = ("column", "extra")
SCHEMAS: Mapping[str, Mapping[str, Any]] = {"plain": PROPERTIES, "rich": RICH, "bare": {}}
"""Properties by dataset of events; that of entities has `_entities` behind its name."""
DEEP = 50
TIMESTAMP = "2026-11-19T10:00:00Z"


class Sent(NamedTuple):
    """A value on its way in."""

    event_id: str
    door: str
    place: str
    value: Value

    @property
    def dataset(self) -> str:
        if self.place == "extra":
            return "bare"
        return "plain" if json.loads(self.value.member) in PROPERTIES else "rich"

    @property
    def table(self) -> str:
        """The dataset that it lands in."""
        return f"{self.dataset}_entities" if self.door in OF_ENTITIES else self.dataset

    @property
    def data(self) -> str:
        """The data that are sent, as JSON."""
        return f"{{{self.value.member}: {self.value.text}}}"


def encoded(text: str) -> bytes:
    """The bytes of a text, some of which may be no UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def is_harmless(text: str) -> bool:
    """Whether a decoder of JSON takes the text."""
    if text.count("[") > DEEP:
        return False
    try:
        orjson.loads(encoded(text))
    except orjson.JSONDecodeError:
        return False
    return "\n" not in text


@dataclass
class Lake:
    """The tenant, what was sent to it, and what was refused."""

    owner: Owner
    guest: Guest
    http: httpx.Client
    sent: dict[str, Sent] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why, by event id."""

    def of(self, door: str, *places: str, only: Callable[[Value], bool] = lambda _: True) -> list[Sent]:
        """The values to send through a door, in each place unless some are named."""
        events = [
            Sent(f"{door}#{place}-{number}", door, place, value)
            for place in places or PLACES
            for number, value in enumerate(ZOO)
            if only(value)
        ]
        self.sent |= {event.event_id: event for event in events}
        return events

    def post(self, path: str, body: bytes, some: list[Sent], **headers: str) -> None:
        """Send values in one request, and note which are refused."""
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.http.post(path, content=body, headers=http_headers)
        document = answer.json()
        if answer.status_code not in (202, 207, 422):
            assert answer.status_code == 400, answer.text
            assert len(some) == 1, answer.text
            one = some[0]
            self.refused[one.event_id] = f"400 {document['detail']}"
            return
        for verdict in document["verdicts"]:
            where = f" at {verdict['pointer']}" if verdict["pointer"] else ""
            self.refused[some[verdict["index"]].event_id] = f"{verdict['reason']}{where}: {verdict['detail']}"


def make_tenant(api: Api) -> Lake:
    """A tenant without datasets of values."""
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "all", tuple(KeyScope))
    return Lake(owner, Guest(owner, key), api.client(key.text))


def make_lake(api: Api) -> Lake:
    """A tenant with the datasets of all values."""
    lake = make_tenant(api)
    make_datasets(lake.owner)
    return lake


def make_datasets(owner: Owner) -> None:
    """Datasets that declare all values, and that declare none, of events and of entities."""
    for slug, properties in SCHEMAS.items():
        document: dict[str, Any] = {"type": "object", "properties": dict(properties)}
        uri = registry.publish_schema(owner.tenant, slug, json.dumps(document)).schema_uri
        registry.create_dataset(owner.tenant, slug, uri)
        visible = {name: definition for name, definition in properties.items() if not name.startswith("_")}
        document = {"type": "object", "properties": visible}
        uri = registry.publish_schema(owner.tenant, f"{slug}_entities", json.dumps(document)).schema_uri
        registry.create_dataset(owner.tenant, f"{slug}_entities", uri, kind=DatasetKind.ENTITIES)


def _event(one: Sent) -> str:
    return (
        f'{{"event_id": "{one.event_id}", "dataset": "{one.dataset}",'
        f' "timestamp": "{TIMESTAMP}", "data": {one.data}}}'
    )


def _cloud(one: Sent) -> str:
    source, _, number = one.event_id.partition("#")
    return (
        f'{{"specversion": "1.0", "id": "{number}", "source": "{source}", "type": "{one.dataset}",'
        f' "time": "{TIMESTAMP}", "data": {one.data}}}'
    )


def entity(one: Sent) -> str:
    """A value as an entity."""
    return f'{{"_id": "{one.event_id}", {one.data[1:]}'


def _in_array(
    lake: Lake, path: str, some: Iterable[Sent], write: Callable[[Sent], str], **headers: str
) -> None:
    """Two requests: of what a decoder does not take, none of which may land, and of the others."""
    requests: dict[bool, list[Sent]] = {False: [], True: []}
    for one in some:
        requests[is_harmless(write(one))].append(one)
    for together in requests.values():
        lake.post(path, encoded(f"[{', '.join(map(write, together))}]"), together, **headers)


def _in_lines(lake: Lake, path: str, some: Iterable[Sent], write: Callable[[Sent], str]) -> None:
    kind = "application/x-ndjson"
    together = []
    for one in some:
        if "\n" in write(one):  # it is two lines
            lake.post(path, encoded(write(one)), [one, one], content_type=kind)
        else:
            together.append(one)
    lake.post(path, encoded("\n".join(map(write, together))), together, content_type=kind)


def collect_array(lake: Lake) -> None:
    """`POST /v1/collect` of a JSON array."""
    _in_array(lake, "/v1/collect", lake.of("array"), _event, content_type="application/json")


def collect_lines(lake: Lake) -> None:
    """`POST /v1/collect` of lines."""
    _in_lines(lake, "/v1/collect", lake.of("lines"), _event)


def cloud_batch(lake: Lake) -> None:
    """`POST /v1/collect` of a batch of CloudEvents."""
    kind = "application/cloudevents-batch+json"
    _in_array(lake, "/v1/collect", lake.of("batch"), _cloud, content_type=kind)


def by_kafka(lake: Lake) -> None:
    """Events that are written to the topic directly."""
    lake.owner.send(*(encoded(_event(one)) for one in lake.of("kafka")))


def cloud_structured(lake: Lake) -> None:
    """`POST /v1/collect` of a CloudEvent."""
    for one in lake.of("structured"):
        lake.post("/v1/collect", encoded(_cloud(one)), [one], content_type="application/cloudevents+json")


def cloud_binary(lake: Lake) -> None:
    """`POST /v1/collect` of a CloudEvent whose attributes are headers."""
    for one in lake.of("binary"):
        number = one.event_id.partition("#")[2]
        attributes = {"specversion": "1.0", "id": number, "source": "binary", "type": one.dataset}
        headers = {f"ce_{name}": text for name, text in (attributes | {"time": TIMESTAMP}).items()}
        lake.post("/v1/collect", encoded(one.data), [one], content_type="application/json", **headers)


def by_replay(lake: Lake) -> None:
    """Events whose dataset is not there yet, replayed once it is."""
    some = {encoded(_event(one)): one for one in lake.of("replay")}
    lake.owner.send(*some)
    ingest(lake.owner)
    make_datasets(lake.owner)
    result = replay(lake.owner.tenant, Filter())
    open_letters = {
        verdict.letter_id: verdict
        for verdict in result.verdicts
        if verdict.outcome is DeadLetterOutcome.REJECTED
    }
    for letter in lake.owner.dead_letters():
        if verdict := open_letters.get(f"0-{letter['event_offset']}"):
            one = some[bytes(letter["payload"])]
            where = f" at {verdict.pointer}" if verdict.pointer else ""
            lake.refused[one.event_id] = f"{verdict.reason}{where}: {verdict.detail}"


def in_sync(lake: Lake) -> None:
    """`POST /v1/datasets/{slug}/entities` of JSON arrays, as parts of a sync."""
    for slug, some in _by_dataset(lake.of("sync")):
        path = f"/v1/datasets/{slug}_entities/entities?sequence_id=all&request_id=1"
        path += "&is_first=true&is_last=true&is_full=true"
        _in_array(lake, path, some, entity, content_type="application/json")


def entities(lake: Lake) -> None:
    """`POST /v1/datasets/{slug}/entities` of lines."""
    for slug, some in _by_dataset(lake.of("entities")):
        _in_lines(lake, f"/v1/datasets/{slug}_entities/entities", some, entity)


def _by_dataset(some: list[Sent]) -> Iterator[tuple[str, list[Sent]]]:
    for slug in SCHEMAS:
        yield slug, [one for one in some if one.dataset == slug]


DOORS: Mapping[str, Callable[[Lake], None]] = {
    "array": collect_array,
    "lines": collect_lines,
    "batch": cloud_batch,
    "kafka": by_kafka,
    "entities": entities,
}


SLOW_DOORS: Mapping[str, Callable[[Lake], None]] = {
    "replay": by_replay,
    "structured": cloud_structured,
    "binary": cloud_binary,
    "sync": in_sync,
}
"""Of a tenant without datasets, which the first one makes."""


def land(lake: Lake) -> None:
    """One batch; what becomes a dead letter in it was refused there."""
    ingest(lake.owner)
    by_payload = {encoded(_event(one)): one for one in lake.sent.values() if one.door == "kafka"}
    for letter in lake.owner.dead_letters():
        if (one := by_payload.get(bytes(letter["payload"]))) is None:
            continue  # of a replay
        where = f" at {letter['pointer']}" if letter["pointer"] else ""
        lake.refused[one.event_id] = f"{letter['reason']}{where}: {letter['detail']}"


def sent_data(one: Sent) -> Any:
    """The data as they were sent, comparable; None where they are no JSON."""
    try:
        return parsed(one.data)
    except Invalid:
        return None
