"""States, and answers to questions, have each value as the table has it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.here import ingest_here
from support.http import Api

from fidelity import lake_of_values as values, readings, record
from fidelity.zoo import PROPERTIES, RICH, Value
from pulse_pipelines import registry

KEY = "key"
LONGEST = 2_000
"""Characters of a value's JSON: a state has no data of more than 4,096 bytes."""
PARCELS = "parcels"
ASKED = {"label": "text", "pieces": "integer"}
"""Columns of a dataset by which a question can group its rows, with the kind of their values."""
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def lake(api: Api) -> Iterator[values.Lake]:
    """A dataset whose columns have all values, and one that has none of these columns, each with a state."""
    lake = values.make_tenant(api)
    key = {KEY: {"type": "string"}}
    schemas: dict[str, dict[str, Any]] = {"column": key | dict(PROPERTIES) | dict(RICH), "extra": key}
    schemas[PARCELS] = {name: PROPERTIES[kind] for name, kind in ASKED.items()}
    # Before the first request: a process that serves the tenant keeps its datasets for a moment.
    for slug, properties in schemas.items():
        document = json.dumps({"type": "object", "properties": properties})
        uri = registry.publish_schema(lake.owner.tenant, slug, document).schema_uri
        registry.create_dataset(lake.owner.tenant, slug, uri)
    with lake.http:
        for place in values.PLACES:
            lake.http.put(f"/v1/datasets/{place}/state", json={"latest_by": KEY}).raise_for_status()
            some = lake.of("state", place, only=_is_short)
            body = "\n".join(map(event, some))
            lake.post("/v1/collect", values.encoded(body), some, content_type="application/x-ndjson")
        ingest_here(lake.owner)
        yield lake


def _is_short(value: Value) -> bool:
    return len(value.text) + len(value.member) < LONGEST and "\n" not in value.text


def event(one: values.Sent) -> str:
    """The event of a value, with the key of its state."""
    return f'{_head(one, one.place)}, "data": {{"{KEY}": "{one.event_id}", {one.data[1:]}}}'


def _head(one: values.Sent, slug: str) -> str:
    return f'{{"event_id": "{one.event_id}", "dataset": "{slug}", "timestamp": "{values.TIMESTAMP}"'


@pytest.fixture(scope="module")
def table(lake: values.Lake) -> dict[str, Any]:
    """The data of each row, by event id."""
    received = {}
    for place in values.PLACES:
        dataset = registry.find_dataset(lake.owner.tenant, place)
        received |= {row["id"]: readings.data(row, dataset.columns) for row in lake.owner.rows(place)}
    for data in received.values():
        del data[KEY]
    return received


def keys(changes: dict[str, record.Changes]) -> set[tuple[str, str]]:
    """Values that are changed, and how."""
    return {
        (event_id, key)
        for event_id, event_changes in changes.items()
        for names, _ in event_changes.values()
        for key in names.split("+")
    }


def test_a_state_has_the_values_of_the_table_or_of_the_sender(
    lake: values.Lake, table: dict[str, Any]
) -> None:
    received, after = {}, None
    for place in values.PLACES:
        while page := _page(lake, place, after):
            received |= page
            after = max(page)
        after = None
    in_table = record.changes(lake.sent.values(), lake, table, "duckdb")
    in_state = record.changes(lake.sent.values(), lake, received, "state")
    assert keys(in_state) <= keys(in_table)
    record.hold("out", "state", {"values": len(received), "differs": {}})


def _page(lake: values.Lake, place: str, after: str | None) -> dict[str, Any]:
    parameters = {"limit": 100} | ({"after": after} if after else {})
    answer = lake.http.get(f"/v1/datasets/{place}/state", params=parameters).raise_for_status()
    entries = readings.parsed(answer.content)["state"]
    return {entry["key"]: {n: item for n, item in entry["data"].items() if n != KEY} for entry in entries}


def test_an_answer_to_a_question_has_each_value_as_it_was_sent(lake: values.Lake) -> None:
    expected: dict[str, set[Any]] = {name: set() for name in ASKED}
    events = []
    for name, kind in ASKED.items():
        for one in lake.sent.values():
            if (one.place, one.value.kind) == ("column", kind) and one.event_id not in lake.refused:
                events.append(f'{_head(one, PARCELS)}, "data": {{"{name}": {one.value.text}}}}}')
                expected[name].add(readings.parsed(one.value.text))
    answer = lake.http.post("/v1/collect", content=values.encoded(f"[{','.join(events)}]"), headers=JSON)
    assert answer.status_code == 202, answer.text
    ingest_here(lake.owner)
    for name in ASKED:
        answer = lake.http.post("/v1/ask", json={"question": f"How many parcels by {name}?"})
        assert answer.status_code == 200, answer.text
        rows = readings.parsed(answer.content)["rows"]
        assert {row[name] for row in rows} - {None} == expected[name]
    record.hold("out", "ask", {"values": sum(map(len, expected.values())), "differs": {}})
