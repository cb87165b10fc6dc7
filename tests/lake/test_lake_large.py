"""Metadata that is large, and permitted: the process that serves all leaves its parsing to another."""

from typing import Any
from uuid import uuid4

import orjson
import pytest
from support.rest_catalog import OWN, SCHEMA, VIEW, Lake, Made, properties, snapshot

from pulse_pipelines.lake import metadata, parsing
from pulse_resources import object_store
from pulse_resources.iceberg import document_weight

MARK = "x" * 2 * parsing.SMALL


def refuse(*_: object) -> None:
    raise AssertionError("it was parsed in the process that serves")


def enlarge(lake: Lake, table: Made) -> Made:
    """The table, registered with metadata that is more than small."""
    at = table.at.replace("/00000-", "/00001-")
    document = table.answer["metadata"] | {"properties": {"mark": MARK}}
    with object_store.file_system().open_output_stream(object_store.key(at)) as sink:
        sink.write(orjson.dumps(document))
    body = {"name": table.name, "metadata-location": at, "overwrite": True}
    answer = lake.client.post(f"{OWN}/register", json=body)
    assert answer.status_code == 200, answer.text
    return Made(table.name, answer.json())


@pytest.fixture
def large(own_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Made:
    table = own_lake.make()
    monkeypatch.setattr(parsing, "table", refuse)
    return enlarge(own_lake, table)


def test_a_large_table_is_parsed_in_another_process(own_lake: Lake, large: Made) -> None:
    committed = own_lake.commit(large.name, properties(a="b"))
    assert committed.status_code == 200, committed.text
    metadata.forget()
    for query in ("", "?snapshots=refs"):
        answer = own_lake.client.get(f"{OWN}/tables/{large.name}{query}").json()["metadata"]["properties"]
        assert (answer["a"], answer["mark"]) == ("b", MARK)
    refused = own_lake.commit(large.name, requirements=[{"type": "assert-table-uuid", "uuid": str(uuid4())}])
    assert refused.status_code == 409, "errors come from there, too"
    wrong = own_lake.commit(large.name, snapshot("s3://elsewhere/x.avro"))
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "BadRequestException")


def test_a_large_request_is_parsed_in_another_process(
    own_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = own_lake.make()
    monkeypatch.setattr(parsing, "table", refuse)
    assert own_lake.commit(table.name, properties(mark=MARK)).status_code == 200
    assert own_lake.load(table.name)["metadata"]["properties"]["mark"] == MARK


def test_a_transaction_is_weighed_as_a_whole(own_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [own_lake.make() for _ in range(3)]
    weight = document_weight.weight(orjson.dumps(tables[0].answer["metadata"]))
    monkeypatch.setattr(parsing, "TOGETHER", 2.5 * weight)

    def commit(*chosen: Made) -> Any:
        changes = [
            {
                "identifier": {"namespace": ["own"], "name": target.name},
                "requirements": [target.uuid],
                "updates": [properties(a="b")],
            }
            for target in chosen
        ]
        return own_lake.client.post("/v1/transactions/commit", json={"table-changes": changes})

    refused = commit(*tables)
    assert (refused.status_code, "too large together" in refused.text) == (400, True)
    assert commit(*tables[:2]).status_code == 204


def test_columns_that_contain_each_other_are_refused(own_lake: Lake) -> None:
    """pyiceberg would go round in a circle, and keep each step."""

    def column(number: int, name: str, *members: dict[str, Any]) -> dict[str, Any]:
        kind = {"type": "struct", "fields": list(members)} if members else "int"
        return {"id": number, "name": name, "required": True, "type": kind}

    ring = {
        "type": "struct",
        "schema-id": 1,
        "identifier-field-ids": [3],
        "fields": [
            column(1, "a", column(2, "b", column(3, "c"))),
            column(2, "d", column(1, "e", column(4, "f"))),
        ],
    }
    table, added = own_lake.make(), [{"action": "add-schema", "schema": ring}]
    view = {"name": "view_of_a_ring", "schema": SCHEMA | {"schema-id": 0}, "view-version": VIEW}
    assert own_lake.client.post(f"{OWN}/views", json=view | {"properties": {}}).status_code == 200
    for path, body in (
        ("tables", {"name": "ring", "schema": ring}),
        (f"tables/{table.name}", {"updates": added, "requirements": []}),
        ("views", view | {"name": "ring", "schema": ring, "properties": {}}),
        ("views/view_of_a_ring", {"updates": added, "requirements": []}),
    ):
        answer = own_lake.client.post(f"{OWN}/{path}", json=body)
        assert (answer.status_code, "two columns of a schema have the id" in answer.text) == (400, True), path
