"""Bodies of many wrong items: one error for all, before each item becomes one."""

from collections.abc import Iterator
from types import GenericAlias
from typing import Any, get_args, get_origin

import pytest
from support.http import Caller, sample

from pulse_api.http import app  # noqa: F401 - makes all bodies
from pulse_api.http.models import MOST_MEMBERS, Body
from pulse_api.http.problems import MOST_LISTED

MANY = 4_000
"""Of so many values a body is decoded."""
NAMES = {f"{number:x}": 1 for number in range(MANY)}
"""Members with values of a wrong type."""
BODIES = {
    "unknown members": ("/v1/ask", {"question": "how many orders"} | NAMES),
    "required fields": ("/v1/schemas", {"name": "a", "fields": {"a": "string"}, "required": [1] * MANY}),
    "fields": ("/v1/schemas", {"name": "a", "fields": NAMES}),
    "snapshots": ("/v1/sql", {"sql": "SELECT 1", "snapshots": NAMES}),
    "ids": ("/v1/dead-letters/replay", {"ids": [1] * MANY}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_of_wrong_items_is_one_error(caller: Caller, name: str) -> None:
    """Pydantic listed them all in the event loop: of a megabyte, others waited for 19 s."""
    path, body = BODIES[name]
    answer = caller.http.post(path, json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert "most" in error["problem"]
    assert caller.collect(sample()).status_code == 202


def test_an_answer_lists_a_part_of_many_errors(caller: Caller) -> None:
    """As many ids may be wrong as a body may have."""
    answer = caller.http.post("/v1/dead-letters/replay", json={"ids": [1] * 1_000})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == MOST_LISTED


def test_a_body_of_many_values_is_not_decoded(caller: Caller) -> None:
    body = {"name": "a", "schema": {"enum": [[]] * 300_000}}
    answer = caller.http.post("/v1/schemas", json=body)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:pulse:problem:too-large")


@pytest.mark.parametrize(
    "message",
    [
        {
            "method": "tools/call",
            "params": {
                "name": "query",
                "arguments": {"snapshots": NAMES, "sql": "," * MANY, "a": [1] * MANY},
            },
        },
        {"method": "tools/call", "params": {"name": "query", "arguments": {"a": [[]] * 2 * MANY}}},
        [{}] * 2 * MANY,
    ],
)
def test_a_call_of_a_tool_with_many_values_is_not_decoded(caller: Caller, message: Any) -> None:
    """The SDK parses it three times in the event loop, and lists the errors of all: others waited 3 s."""
    body = message if isinstance(message, list) else {"jsonrpc": "2.0", "id": 1} | message
    answer = caller.http.post("/mcp", json=body, headers={"Accept": "application/json, text/event-stream"})
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:pulse:problem:too-large")


def test_each_collection_in_a_body_has_a_limit() -> None:
    """But for JSON that is no error whatever it is."""
    unlimited = [
        f"{body.__name__}.{name}"
        for body in _bodies(Body)
        for name, field in body.model_fields.items()
        if any(get_origin(kind) in (list, dict, tuple, set) for kind in _kinds(field.annotation))
        and get_args(field.annotation) != (str, Any)
        and not any(getattr(rule, "max_length", None) for rule in field.metadata)
    ]
    assert unlimited == []
    assert all(len(body.model_fields) < MOST_MEMBERS for body in _bodies(Body))


def _bodies(of: type[Body]) -> Iterator[type[Body]]:
    for body in of.__subclasses__():
        yield body
        yield from _bodies(body)


def _kinds(annotation: Any) -> Iterator[Any]:
    """A type, and the members of a union."""
    yield annotation
    if not isinstance(annotation, GenericAlias):
        yield from get_args(annotation)


def test_an_address_of_many_parameters_is_refused_before_they_are_parsed(caller: Caller) -> None:
    """Of 15,000 the framework took 20 ms of the event loop, without a key."""
    for method, path in (("GET", "/v1/datasets"), ("POST", "/v1/datasets/orders/entities")):
        answer = caller.http.request(method, f"{path}?{'a=1&' * 100}", headers={"Authorization": ""})
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:pulse:problem:malformed")
        assert "100 parameters" in answer.json()["detail"]


def test_a_part_of_many_accepted_types_is_read(caller: Caller) -> None:
    path, kinds = "/v1/datasets/orders/preview", "text/none," * 99
    statuses = [
        caller.http.get(path, headers={"Accept": accept}).status_code
        for accept in (kinds + "application/json", kinds + "text/none,application/json")
    ]
    assert statuses == [200, 406]
