"""Previews and snapshots over HTTP: media types, ranges, time travel, and other tenants' datasets."""

import csv
import io
from typing import Any

import httpx
import pyarrow as pa
import pytest
from support.here import ingest_here as ingest
from support.http import Caller
from support.ingest import event

from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.query.formats import SPREADSHEET

ARROW = "application/vnd.apache.arrow.stream"
PREVIEW, SNAPSHOTS = "/v1/datasets/orders/preview", "/v1/datasets/orders/snapshots"


@pytest.fixture
def reader(new_caller: Any) -> Caller:
    """A tenant with two batches of orders."""
    caller: Caller = new_caller()
    for batch in range(2):
        caller.owner.send(*(event(f"{batch}-{number}", count=10 * batch + number) for number in range(3)))
        ingest(caller.owner)
    return caller


def get(caller: Caller, accept: str | None = None, **query: object) -> httpx.Response:
    headers = {} if accept is None else {"accept": accept}
    parameters = {name.rstrip("_"): str(value) for name, value in query.items()}
    return caller.http.get(PREVIEW, params=parameters, headers=headers)


def counts(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [row["count"] for row in answer.json()["rows"]]


def test_a_revoked_key_previews_nothing_though_its_view_is_kept(reader: Caller) -> None:
    assert [get(reader, limit=2).status_code for _ in range(3)] == [200] * 3
    assert reader.http.delete(f"/v1/keys/{reader.key.stored.key_id}").status_code == 200
    assert {get(reader, limit=2).status_code for _ in range(3)} == {401}


def test_the_newest_rows_in_each_media_type(reader: Caller) -> None:
    answer = get(reader, limit=2)
    assert (answer.headers["content-type"], answer.headers["vary"]) == ("application/json", "Accept")
    assert counts(answer) == [0, 1]
    (row, _) = answer.json()["rows"]
    assert (row["timestamp"], row["country"], row["_offset"]) == ("2026-11-19T10:00:00Z", "DE", 0)
    text = get(reader, "text/csv", limit=2, columns="count,id")
    assert text.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(io.StringIO(text.text, newline=""))) == [
        ["count", "id"],
        ["0", "0-0"],
        ["1", "0-1"],
    ]
    stream = get(reader, ARROW, limit=2)
    assert stream.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(stream.content).read_all()
    assert table.column("count").to_pylist() == [0, 1]
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")


ACCEPTED = [
    ("*/*", "application/json"),
    ("text/*, application/json;q=0.5", "text/csv"),
    ("text/html, */*;q=0.1", "application/json"),
    ("application/json;q=0, */*", "text/csv"),
    (f"{ARROW};q=0.9, text/csv;q=0.8", ARROW),
    ("text/csv; For=Spreadsheet", SPREADSHEET),
    ("text/csv;for=spreadsheet;q=0.4, application/json;q=0.3", SPREADSHEET),
    ("text/csv;for=spreadsheet;q=0.4, application/json;q=0.5", "application/json"),
    ("text/csv;for=people", "text/csv"),
    ("TEXT/CSV; charset=utf-8", "text/csv"),
]


@pytest.mark.parametrize(("accept", "media_type"), ACCEPTED)
def test_the_header_accept_chooses(caller: Caller, accept: str, media_type: str) -> None:
    assert get(caller, accept).headers["content-type"].startswith(media_type)


@pytest.mark.parametrize(
    "accept", ["text/html", "application/xml, image/*", "*/*;q=0", "nonsense", "a/b;q=x"]
)
def test_an_unsupported_media_type_is_answered_with_406(caller: Caller, accept: str) -> None:
    answer = get(caller, accept)
    assert (answer.status_code, answer.json()["type"]) == (406, "urn:pulse:problem:not-acceptable")
    assert "text/csv" in answer.json()["detail"]


def test_ranges_and_earlier_moments(reader: Caller) -> None:
    newer, older = reader.http.get(SNAPSHOTS).json()["snapshots"]
    assert isinstance(newer["snapshot_id"], str), "beyond 2^53"
    assert (newer["parent_id"], newer["added_rows"], newer["total_rows"]) == (older["snapshot_id"], 3, 6)
    assert (older["parent_id"], older["operation"], older["total_rows"]) == (None, "append", 3)
    assert older["batch_id"] != newer["batch_id"]
    assert len(reader.http.get(SNAPSHOTS, params={"limit": 1}).json()["snapshots"]) == 1
    assert counts(get(reader)) == [0, 1, 2, 10, 11, 12]
    assert counts(get(reader, snapshot_id=older["snapshot_id"])) == [0, 1, 2]
    assert counts(get(reader, as_of=older["committed_at"])) == [0, 1, 2]
    assert counts(get(reader, as_of="2020-01-01T00:00:00Z")) == []
    assert counts(get(reader, from_="2026-11-19T11:00:00+01:00", limit=1)) == [0]
    assert counts(get(reader, to="2026-11-19T10:00:00Z")) == []
    assert get(reader, snapshot_id=1).status_code == 404


WRONG: list[tuple[dict[str, object], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": 10_001}, "limit"),
    ({"limit": "ten"}, "limit"),
    ({"columns": "id,absent"}, "no column 'absent'"),
    ({"columns": 'id" FROM x; --'}, "columns"),
    ({"columns": "id,id"}, "twice"),
    ({"from_": "yesterday"}, "RFC 3339"),
    ({"to": "2026-11-19T10:00:00"}, "RFC 3339"),
    ({"as_of": "0"}, "RFC 3339"),
    ({"snapshot_id": 1, "as_of": "2026-11-19T10:00:00Z"}, "both a snapshot and a time"),
    ({"snapshot_id": 2**63}, "snapshot_id"),
]


@pytest.mark.parametrize(("query", "reason"), WRONG)
def test_a_wrong_request_is_a_422_with_the_reason(caller: Caller, query: dict[str, Any], reason: str) -> None:
    answer = get(caller, **query)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:pulse:problem:invalid-request")
    assert reason in answer.json()["detail"]


@pytest.mark.parametrize("path", [PREVIEW, SNAPSHOTS])
def test_a_foreign_dataset_is_answered_like_one_that_does_not_exist(new_caller: Any, path: str) -> None:
    mine, neighbour = new_caller(), new_caller()
    assert mine.http.delete("/v1/datasets/orders").status_code == 200
    foreign, absent = (mine.http.get(path.replace("orders", slug)) for slug in ("orders", "absent"))
    assert neighbour.http.get(path).status_code == 200
    assert foreign.status_code == absent.status_code == 404

    def plain(answer: httpx.Response) -> Any:
        document = answer.json() | {"request_id": ""}
        return {key: str(value).replace("absent", "orders") for key, value in document.items()}

    assert plain(foreign) == plain(absent)


@pytest.mark.parametrize("path", [PREVIEW, SNAPSHOTS])
def test_a_key_without_the_scope_reads_nothing(new_caller: Any, api: Any, path: str) -> None:
    assert new_caller([KeyScope.COLLECT]).http.get(path).status_code == 403
    with api.client() as nobody:
        assert nobody.get(path).status_code == 401


def test_the_document_declares_every_answer(api: Any) -> None:
    with api.client() as nobody:
        paths = nobody.get("/openapi.json").json()["paths"]
    operation = paths["/v1/datasets/{slug}/preview"]["get"]
    assert set(operation["responses"]) == {"200", "401", "403", "404", "406", "422", "429", "503"}
    assert set(operation["responses"]["200"]["content"]) == {
        "application/json",
        "text/csv",
        SPREADSHEET,
        ARROW,
    }
    named = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    assert {"from", "to", "columns", "snapshot_id", "as_of", "limit", "slug", "subset"} == set(named)
    assert {"type": "string", "format": "date-time"} in named["from"]["anyOf"]
