"""What lands is what the package `jsonschema` accepts, value for value; what it refuses is a dead letter."""

import json
import os
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import pytest
from support.conformance import Case, difference, gathered
from support.http import Caller
from support.ingest import Owner, ingest

from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_resources import iceberg
from pulse_resources.errors import UserError

ROUNDS = int(os.environ.get("CONFORMANCE_ROUNDS", "3"))
FIRST = int(os.environ.get("CONFORMANCE_SEED", "1"))


def test_a_short_round(new_caller: Callable[..., Caller]) -> None:
    conform(new_caller(), gathered(8, 12, 0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_a_round(seed: int, new_caller: Callable[..., Caller]) -> None:
    conform(new_caller(), gathered(60, 60, seed))


CASE = Case(
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["string", "null"], "format": "date"},
            "count": {"type": "object", "properties": {"x": {"type": "string", "format": "date"}}},
        },
    },
    [],
)
SENT = {"a": 1.0, "b": "2026-11-19", "count": {"x": "1", "y": [2]}, "z": None, "more": 1}
ROW = {"a": 1, "b": date(2026, 11, 19), "count": {"x": "1"}, "_extra": '{"count": {"y": [2]}, "more": 1}'}
PLANTED: dict[str, dict[str, Any]] = {
    "a number": {"a": 2},
    "a type": {"a": True},
    "nothing": {"a": None},
    "a day": {"b": date(2026, 11, 18)},
    "a member": {"count": {"x": None}},
    "what has no column": {"_extra": '{"more": 1}'},
    "what nobody sent": {"_extra": '{"count": {"y": [2]}, "more": 1, "other": 1}'},
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_noticed(planted: str) -> None:
    assert difference(CASE, SENT, ROW) is None
    assert difference(CASE, SENT, ROW | PLANTED[planted]) is not None


def test_formats_are_annotations_but_for_typed_columns() -> None:
    assert CASE.accepted(SENT), "what x says is no date, and it is no column of its own"
    assert CASE.accepted(SENT | {"b": None})
    assert not CASE.accepted(SENT | {"b": "2023-02-29"})
    assert not CASE.accepted(SENT | {"a": 1.5})


def conform(caller: Caller, cases: Sequence[Case]) -> None:
    """Publish, send and land all of it, and compare."""
    owner, published = caller.owner, {}
    for number, case in enumerate(cases):
        if publish(owner, f"d{number}", case):
            published[f"d{number}"] = case
    assert len(published) > len(cases) / 2, "schemas are refused"
    sent = {
        (slug, f"{slug}-{number}"): data
        for slug, case in published.items()
        for number, data in enumerate(case.data)
    }
    accepted = {where for where, data in sent.items() if published[where[0]].accepted(data)}
    assert accepted, "nothing is accepted"
    assert sent.keys() - accepted, "nothing is refused"
    refused = {where for slug in published for where in collect(caller, slug, sent)}
    wrong = [about(published, sent, where, "at the door") for where in refused ^ (sent.keys() - accepted)]
    ingest(owner)
    letters = {
        (letter["dataset"], json.loads(bytes(letter["payload"]))["event_id"])
        for letter in owner.dead_letters()
    }
    wrong += [
        about(published, sent, where, "as a dead letter") for where in letters ^ (sent.keys() - accepted)
    ]
    for slug, case in published.items():
        exact = {row["id"]: row for row in owner.rows(slug)}
        by_pyiceberg = [with_nulls(row, exact.get(row["id"], {})) for row in scanned(owner, slug)]
        for reader, rows in (("DuckDB", owner.rows(slug)), ("PyIceberg", by_pyiceberg)):
            landed = {(slug, row["id"]): row for row in rows}
            assert len(landed) == len(rows), "an event has two rows"
            of_slug = {where for where in accepted if where[0] == slug}
            wrong += [about(published, sent, where, f"by {reader}") for where in landed.keys() ^ of_slug]
            for where in landed.keys() & of_slug:
                if deviation := difference(case, sent[where], landed[where]):
                    wrong.append(about(published, sent, where, f"by {reader}: {deviation}"))
    assert not wrong, f"{len(wrong)} differences, such as:\n" + "\n".join(sorted(wrong, key=len)[:3])


def with_nulls(received: Any, exact: Any) -> Any:
    """What PyIceberg reads; a list of objects that is null is an empty one to it (as of 0.12)."""
    if isinstance(received, dict) and isinstance(exact, dict):
        return {name: with_nulls(value, exact.get(name)) for name, value in received.items()}
    if isinstance(received, list) and isinstance(exact, list) and len(received) == len(exact):
        return [with_nulls(*pair) for pair in zip(received, exact, strict=True)]
    return exact if received == [] and exact is None else received


def publish(owner: Owner, slug: str, case: Case) -> bool:
    """Whether Pulse takes the schema at all: it says why, and that is not what is asked here."""
    try:
        uri = registry.publish_schema(owner.tenant, slug, json.dumps(case.schema)).schema_uri
        registry.create_dataset(owner.tenant, slug, uri, on_invalid=OnInvalid.DEAD_LETTER)
    except UserError:
        return False
    return True


def collect(caller: Caller, slug: str, sent: dict[tuple[str, str], dict[str, Any]]) -> list[tuple[str, str]]:
    """Send what is of a dataset; gives what the front door makes dead letters of."""
    events = [
        {"event_id": event_id, "dataset": slug, "timestamp": "2026-11-19T10:00:00Z", "data": data}
        for (of, event_id), data in sent.items()
        if of == slug
    ]
    answer = caller.collect(json.dumps(events).encode())
    assert answer.status_code == 202, answer.text
    return [(slug, verdict["event_id"]) for verdict in answer.json()["verdicts"]]


def scanned(owner: Owner, slug: str) -> list[dict[str, Any]]:
    location = registry.current_table(owner.tenant, slug).metadata_location
    table = iceberg.load_table((owner.tenant.namespace, slug), location)
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


def about(
    published: dict[str, Case],
    sent: dict[tuple[str, str], dict[str, Any]],
    where: tuple[str, str],
    place: str,
) -> str:
    case, data = published[where[0]], sent[where]
    verdict = "accepts" if case.accepted(data) else "refuses"
    return f"jsonschema {verdict} {json.dumps(data)} by {json.dumps(case.schema)}; not so {place}"
