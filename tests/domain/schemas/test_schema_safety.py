"""Schemas that mean harm: none opens a socket or a file, hangs, takes the memory or ends the process.

Each runs in a process of its own, with little memory, few seconds and a hook on every audited event: a copy
of one that has imported everything.
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.counting import count_calls

from chaos.waiting import PATIENCE_S
from pulse_pipelines.domain.schemas.applications import MAX_LOOKS, branches
from pulse_pipelines.domain.schemas.schema import DRAFTS, check_document, compiled, validator
from pulse_pipelines.domain.schemas.shorthand import expand, is_shorthand
from pulse_pipelines.domain.schemas.violations import violation
from pulse_resources.errors import UserError

DYNAMIC, STRICT = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"
SECONDS = 5
HARNESS = textwrap.dedent("""
    import json, os, resource, sys
    # Everything is imported and used once before the hook: what it sees then is the schema's doing.
    from pulse_pipelines.domain.schemas.cost import Bound
    from pulse_pipelines.domain.schemas.schema import check_document, compiled
    from pulse_pipelines.domain.schemas.violations import violation
    from pulse_resources.errors import UserError
    for document in ('{"type": "object", "anyOf": [{"pattern": "a"}]}', '{"type": "object", "$ref": "#/a"}'):
        try:
            check_document(document, Bound())
            violation(document, {})
        except UserError:
            pass
    for line in sys.stdin:
        if not (process := os.fork()):
            break
        _, status = os.waitpid(process, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
    else:
        sys.exit()
    case = json.loads(line)
    resource.setrlimit(resource.RLIMIT_CPU, (%d, %d))
    seen = []
    WATCHED = ("open", "socket.", "subprocess.", "os.", "urllib.")
    def watch(name, args):
        if name.startswith(WATCHED):
            seen.append((name, repr(args)[:200]))
    sys.addaudithook(watch)
    try:
        document = check_document(json.dumps(case["schema"]), Bound())
        found = violation(json.dumps(document), case["event"])
        outcome = ["checked", None if found is None else found[0]]
    except UserError as error:
        outcome = ["refused", str(error)]
    heard = list(seen)  # the rest is the test's doing
    # Not ru_maxrss: that of a child begins with what its parent had when it forked.
    memory = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
    print(json.dumps({"outcome": outcome, "seen": heard, "memory": memory}), flush=True)
    os._exit(0)
""") % (SECONDS, SECONDS)  # fmt: skip


Alone = Callable[..., tuple[str, str | None]]


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    """What becomes of a schema, and of an event by it, in a process of its own."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HARNESS], **pipes, bufsize=0, process_group=0) as harness:

        def line() -> Any:
            assert select.select([harness.stdout], [], [], PATIENCE_S)[0], "it hangs"
            return json.loads(harness.stdout.readline())  # type: ignore[union-attr]

        def ask(schema: Any, event: Any = None) -> tuple[str, str | None]:
            case = json.dumps({"schema": schema, "event": event or {}})
            harness.stdin.write(f"{case}\n".encode())  # type: ignore[union-attr]
            answer = line()
            assert isinstance(answer, dict), f"ended with {answer}"
            assert line() == 0
            assert answer["seen"] == []
            assert answer["memory"] < 600_000, "kilobytes"
            return tuple(answer["outcome"])

        try:
            yield ask
        finally:
            os.killpg(harness.pid, signal.SIGKILL)


def schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "object"} | keywords


def a(fragment: Any, **keywords: Any) -> dict[str, Any]:
    return schema(properties={"a": fragment}, **keywords)


def doubling(levels: int, step: Any) -> dict[str, Any]:
    """Definitions of which each refers twice to the next."""
    defs = {f"d{n}": step({"$ref": f"#/$defs/d{n + 1}"}) for n in range(levels)}
    return a({"$ref": "#/$defs/d0"}, **{"$defs": defs | {f"d{levels}": {"type": "string"}}})


def chain(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"a": value}
    return value


def deep(levels: int, step: Any) -> Any:
    node: Any = {"type": "string"}
    for _ in range(levels):
        node = step(node)
    return node


REMOTE: dict[str, dict[str, Any]] = {
    "http": a({"$ref": "http://127.0.0.1:9/x.json"}),
    "https": a({"$ref": "https://127.0.0.1:9/x.json"}),
    "file": a({"$ref": "file:///etc/hostname"}),
    "a path": a({"$ref": "/etc/hostname"}),
    "a relative path": a({"$ref": "../x.json"}),
    "without a scheme": a({"$ref": "//127.0.0.1:9/x"}),
    "data": a({"$ref": "data:application/json,{}"}),
    "an address made of the root's": a({"$ref": "x"}, **{"$id": "http://127.0.0.1:9/"}),
    "a fragment of another document": a({"$ref": "x#/a"}, **{"$id": "http://127.0.0.1:9/"}),
    "an address inside": a({"$id": "http://127.0.0.1:9/x", "$ref": "#/y"}),
    "a file as address": a({"$id": "file:///etc/", "$ref": "#/hostname"}),
    "in a definition": a(
        {"$ref": "#/$defs/x"}, **{"$defs": {"x": {"items": {"$ref": "http://127.0.0.1:9/x"}}}}
    ),
    "where no schema is expected": a({"$ref": "#/x"}, x={"$ref": "http://127.0.0.1:9/x"}),
    "deep where no schema is expected": a({"$ref": "#/x/y"}, x={"y": {"items": {"$ref": "file:///etc/x"}}}),
    "in an enum": a({"$ref": "#/enum/0"}, enum=[{"$ref": "http://127.0.0.1:9/x"}]),
    "dynamically": a({"$dynamicRef": "http://127.0.0.1:9/x#y"}),
    "dynamically, inside": a({"$dynamicRef": "#y"}, **{"$dynamicAnchor": "y"}),
    "recursively": a({"$recursiveRef": "#"}, **{"$schema": DRAFTS[1], "$recursiveAnchor": True}),
    "a metaschema": a({}, **{"$schema": "http://127.0.0.1:9/meta"}),
    "a metaschema in a file": a({}, **{"$schema": "file:///etc/hostname"}),
    "a metaschema that looks right": a({}, **{"$schema": f"{DYNAMIC}/"}),
    "a metaschema with a query": a({}, **{"$schema": f"{DYNAMIC}?x"}),
    "another metaschema inside": a({"$schema": "http://127.0.0.1:9/meta"}),
    "another metaschema inside, with an address": a({"$id": "x", "$schema": "http://127.0.0.1:9/meta"}),
    "beside the reference": a({"$ref": "#/$defs/x", "not": {"$ref": "file:///x"}}, **{"$defs": {"x": {}}}),
}


@pytest.mark.parametrize("name", REMOTE)
def test_nothing_is_fetched(name: str, tmp_path: Path, alone: Alone) -> None:
    """Audit events are Python's alone, and the validator is not: so a server and a schema file are there.

    Whoever connected would be in the queue of the server, whoever read the file would accept the schema.
    """
    file = tmp_path / "x.json"
    file.write_text('{"type": "string"}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        text = json.dumps(REMOTE[name]).replace("127.0.0.1:9", f"127.0.0.1:{server.getsockname()[1]}")
        text = text.replace("file:///etc/hostname", file.as_uri()).replace("/etc/hostname", str(file))
        outcome, why = alone(json.loads(text))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert outcome == "refused"
    assert why


ALL_OF_TWO = doubling(30, lambda reference: {"allOf": [reference, reference]})
BOMBS: dict[str, tuple[dict[str, Any], Any]] = {
    # Name: a schema that is refused, and the event that it would have been tried on.
    "allOf of two, 30 levels": (ALL_OF_TWO, {"a": "x"}),
    "anyOf of two, 30 levels": (doubling(30, lambda r: {"anyOf": [r, r]}), {"a": 1}),
    "oneOf of two, 30 levels": (doubling(30, lambda r: {"oneOf": [r, r]}), {"a": 1}),
    "not, and if, 30 levels": (doubling(30, lambda r: {"not": r, "if": r}), {"a": 1}),
    "level by level": (
        doubling(30, lambda r: {"allOf": [{"properties": {"a": r}}, {"properties": {"a": r}}]}),
        chain("x", 30),
    ),
    "by item": (
        doubling(30, lambda r: {"anyOf": [{"items": r}, {"prefixItems": [r]}]}),
        {"a": []},
    ),
    "itself twice, level by level": (
        schema(anyOf=[{"properties": {"a": {"$ref": "#"}}, "required": [name]} for name in ("y", "z")]),
        chain({}, 26),
    ),
    "others twice, level by level": (
        schema(
            properties={"a": {"allOf": [{"$ref": "#/$defs/x"}] * 2}},
            **{
                "$defs": {
                    "x": {"properties": {"a": {"allOf": [{"$ref": "#/$defs/y"}] * 2}}},
                    "y": {"properties": {"a": {"allOf": [{"$ref": "#"}] * 2}}},
                }
            },
        ),
        chain({}, 40),
    ),
    "itself by name and by pattern": (
        schema(properties={"a": {"$ref": "#"}}, patternProperties={"^a": {"$ref": "#"}}),
        chain({}, 60),
    ),
    "itself by name and by what is left": (
        schema(
            properties={"b": {}},
            additionalProperties={"$ref": "#"},
            allOf=[{"properties": {"a": {"$ref": "#"}}}],
        ),
        chain({}, 60),
    ),
    "what is left of what is left, 25 levels": (
        deep(25, lambda inner: schema(allOf=[inner], unevaluatedProperties={"type": "integer"})),
        {"a": 1},
    ),
    "ten thousand choices": (
        a({"items": {"anyOf": [{"minLength": n} for n in range(MAX_LOOKS)]}}),
        {"a": [1] * 9},
    ),
    "too many patterns": (schema(properties={f"p{n}": {"pattern": f"a{n}"} for n in range(101)}), {}),
    "a long pattern": (a({"pattern": "a" * 1_001}), {"a": "x"}),
    "a pattern that counts far": (a({"pattern": "(a{1000}){1000}"}), {"a": "x"}),
    "a pattern that looks ahead": (a({"pattern": "(?=a)b"}), {"a": "x"}),
    "a pattern that looks back": (a({"pattern": r"(a)\1"}), {"a": "x"}),
    "a pattern of names that counts far": (schema(patternProperties={"(a{1000}){1000}": {}}), {}),
    "itself": (a({"$ref": "#/properties/a"}), {"a": 1}),
    "the whole is itself": (schema(**{"$ref": "#"}), {}),
    "the whole is all of itself": (schema(allOf=[{"$ref": "#"}]), {}),
    "what it is not": (schema(**{"not": {"$ref": "#"}}), {}),
    "each other": (
        a(
            {"$ref": "#/$defs/x"},
            **{"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"anyOf": [{"$ref": "#/$defs/x"}]}}},
        ),
        {"a": 1},
    ),
    "itself by an anchor": (a({"$anchor": "x", "$ref": "#x"}), {"a": 1}),
    "a chain of 5,000": (
        a(
            {"$ref": "#/$defs/d0"},
            **{"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)} | {"d5000": {}}},
        ),
        {"a": 1},
    ),
    "nothing there": (a({"$ref": "#/$defs/none"}), {"a": 1}),
    "no schema there": (a({"$ref": "#/required/0"}, required=["a"]), {"a": 1}),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(name: str, alone: Alone) -> None:
    outcome, why = alone(*BOMBS[name])
    assert (outcome, bool(why)) == ("refused", True)


HARMLESS: dict[str, tuple[dict[str, Any], Any, str | None]] = {
    # Name: a schema that looks like harm, an event, and where that breaks it.
    "a tree": (
        schema(properties={"left": {"$ref": "#"}, "right": {"$ref": "#"}, "a": {"$ref": "#"}}),
        chain({"left": 1}, 60),
        "/a" * 60 + "/left",
    ),
    "a list of itself": (schema(properties={"a": {"items": {"$ref": "#"}}}), {"a": [{"a": [1]}]}, "/a/0/a/0"),
    "a tree of many shapes": (
        schema(
            oneOf=[
                {"properties": {"value": {"type": "string"}}, "required": ["value"]},
                {"properties": {"and": {"items": {"$ref": "#"}}}, "required": ["and"]},
                {"properties": {"or": {"items": {"$ref": "#"}}}, "required": ["or"]},
            ]
        ),
        {"and": [{"or": [{"value": "x"}, {"and": []}]}, {"value": "y"}]},
        None,
    ),
    "two that refer to each other": (
        a(
            {"$ref": "#/$defs/x"},
            **{
                "$defs": {
                    "x": {"properties": {"l": {"$ref": "#/$defs/x"}, "r": {"$ref": "#/$defs/y"}}},
                    "y": {"properties": {"l": {"$ref": "#/$defs/x"}, "r": {"type": "string"}}},
                }
            },
        ),
        {"a": {"r": {"l": {"r": {"r": 1}}}}},
        "/a/r/l/r/r",
    ),
    "a long chain of members": (
        a(
            {"$ref": "#/$defs/d0"},
            **{
                "$defs": {
                    f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}}
                    for n in range(1_500)
                }
                | {"d1500": {"type": "string"}}
            },
        ),
        chain(1, 60),
        "/a" * 60,
    ),
    "deep": (a(deep(58, lambda inner: {"not": inner})), {"a": 1}, "/a"),
    "nested quantifiers": (a({"pattern": "^(a+)+$"}), {"a": "a" * 200_000 + "!"}, "/a"),
    "alternatives that overlap": (a({"pattern": "^(a|aa|a?)+$"}), {"a": "a" * 200_000 + "!"}, "/a"),
    "names against patterns": (
        schema(patternProperties={"^(a+)+$": False}),
        {"a" * 100_000: 1},
        "/" + "a" * 100_000,
    ),
    "many items, few choices": (
        a({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
        {"a": [1] * 100_000},
        "/a/0",
    ),
    "few items, few choices": (
        a({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
        {"a": ["x", 1]},
        "/a/1",
    ),
    "choices that each find much": (
        a({"anyOf": [{"items": {"minLength": n, "type": "string"}} for n in range(90)]}),
        {"a": [1] * 100_000},
        "/a/0",
    ),
    "ten patterns on one value": (a({"allOf": [{"pattern": f"a{n}"} for n in range(10)]}), {"a": "x"}, "/a"),
    "a hundred choices": (
        a({"items": {"anyOf": [{"type": "string", "minLength": n} for n in range(100)]}}),
        {"a": [1] * 9},
        "/a/0",
    ),
    "definitions that nothing refers to": (schema(**{"$defs": ALL_OF_TWO["$defs"]}), {}, None),
    "a definition that nothing refers to and that refers to another place": (
        schema(**{"$defs": {"x": {"$ref": "http://127.0.0.1:9/x"}}}),
        {},
        None,
    ),
    "an address inside, of draft 4": (
        a({"id": "http://127.0.0.1:9/x"}, **{"$schema": DRAFTS[4]}),
        {"a": 1},
        None,
    ),
    "addresses inside": (
        a({"$ref": "y"}, **{"$id": "http://127.0.0.1:9/x", "$defs": {"y": {"$id": "y", "type": "string"}}}),
        {"a": 1},
        "/a",
    ),
    "an address of the whole": (
        a({"$ref": "#/$defs/x"}, **{"$id": "http://127.0.0.1:9/", "$defs": {"x": {}}}),
        {"a": 1},
        None,
    ),
    "an anchor": (a({"$ref": "#x"}, **{"$defs": {"x": {"$anchor": "x", "type": "string"}}}), {"a": 1}, "/a"),
    "an anchor of draft 7": (
        a({"$ref": "#x"}, **{"$schema": STRICT, "definitions": {"x": {"$id": "#x", "type": "string"}}}),
        {"a": 1},
        "/a",
    ),
    "formats are no conditions": (
        a({"type": "string", "format": "ipv4"}, **{"$schema": STRICT}),
        {"a": "x"},
        None,
    ),
    "a property that is called like a keyword": (
        schema(properties={"$ref": {}, "$id": {}, "allOf": {}}),
        {"$ref": "http://x"},
        None,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_schema_that_resembles_an_attack_is_checked_in_time(name: str, alone: Alone) -> None:
    document, event, pointer = HARMLESS[name]
    assert alone(document, event) == ("checked", pointer)


LARGE: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "choices of texts": (
        950,
        lambda size: schema(
            properties={
                f"p{n}": {"type": "string", "enum": ["a", "b"], "title": "x" * 60} for n in range(size)
            }
        ),
    ),
    "references": (
        950,
        lambda size: schema(
            properties={f"p{n}": {"$ref": "#/$defs/x"} for n in range(size)},
            **{"$defs": {"x": {"type": "string"}}},
        ),
    ),
    "choices of objects": (
        45,
        lambda size: schema(anyOf=[schema(properties={f"p{n}": {"const": n}}) for n in range(size)]),
    ),
    "parts": (
        45,
        lambda size: schema(
            allOf=[{"properties": {f"p{n}": {"maxLength": m} for n in range(60)}} for m in range(size)]
        ),
    ),
}


@pytest.mark.parametrize("kind", LARGE)
def test_to_check_a_schema_of_twice_the_size_costs_less_than_four_times(kind: str) -> None:
    size, make = LARGE[kind]
    small, large = (
        count_calls(partial(check_document, json.dumps(make(number)))) for number in (size, 2 * size)
    )
    assert large < 3.5 * small


# the count of branches ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "count"),
    [
        (schema(), 1),
        (a({"type": "string"}), 1),
        (a({"anyOf": [{}, {}]}), 3),
        (a({"anyOf": [{"anyOf": [{}, {}]}, {}]}), 5),
        (schema(allOf=[{"properties": {"a": {}}}, {"properties": {"a": {}}}]), 3),
        (schema(allOf=[{"properties": {"a": {}}}, {"properties": {"b": {}}}]), 3),
        (schema(properties={"a": {}}, additionalProperties={"anyOf": [{}, {}]}), 3),
        (schema(properties={"a": {"anyOf": [{}] * 5}}, patternProperties={"a": {"anyOf": [{}] * 5}}), 12),
        (a({"prefixItems": [{"anyOf": [{}, {}]}], "items": {"anyOf": [{}, {}]}}), 3),
        (a({"contains": {"anyOf": [{}, {}]}, "items": {"anyOf": [{}, {}]}}), 6),
        (a({"$ref": "#/$defs/x"}, **{"$defs": {"x": {"not": {}}}}), 3),
        (schema(properties={"a": {"$ref": "#"}, "b": {"$ref": "#"}}), 2),
        (a({"pattern": "a"}), 1),
    ],
)
def test_branches_are_counted(document: Any, count: int) -> None:
    assert branches(document) == count


def test_an_event_meets_no_more_subschemas_than_were_counted() -> None:
    """Random schemas: the choices that fail at one value of an event are at most what was counted."""
    chance = random.Random(7)  # noqa: S311
    met = 0
    for _ in range(300):
        document = schema(properties={"a": fragment(chance), "b": fragment(chance)})
        most = branches(document)
        for event in ({"a": 1, "b": {"a": 1}}, {"a": {"a": [1], "b": 1}, "b": [[1], 1]}):
            places: dict[str, int] = {}
            for error in leaves(validator(document).iter_errors(event)):
                where = json.dumps(list(error.instance_path))
                places[where] = places.get(where, 0) + 1
            met = max(met, *places.values(), 0)
            assert max(places.values(), default=0) <= most, document
    assert met > 3


def fragment(chance: random.Random, depth: int = 0) -> Any:
    if depth > 3 or chance.random() < 0.3:
        return {"type": chance.choice(("string", "null"))}
    inner = [fragment(chance, depth + 1) for _ in range(chance.randrange(1, 4))]
    return chance.choice(
        (
            {"anyOf": inner},
            {"allOf": inner},
            {"properties": dict(zip("ab", inner, strict=False))},
            {"items": inner[0]},
            {"properties": {"a": inner[0]}, "additionalProperties": inner[-1]},
        )
    )


def leaves(errors: Any) -> Any:
    for error in errors:
        context = getattr(error.kind, "context", None)
        if context:
            for choice in context:
                yield from leaves(choice)
        else:
            yield error


# where an event breaks its schema ----------------------------------------------------------------


def test_a_violation_is_where_the_first_error_is() -> None:
    document = json.dumps(check_document(json.dumps(a({"type": "array", "items": {"type": "string"}}))))
    assert violation(document, {"a": ["x"]}) is None
    assert violation(document, {"a": ["x", 1, 2]}) == ("/a/1", '1 is not of type "string"')
    assert compiled(document) is compiled(document)


# the shorthand -----------------------------------------------------------------------------------

FIELDS = {
    "country": "string", "amount": "number", "count": "integer", "active": "boolean",
    "signup_at": "timestamp", "born": "date",
}  # fmt: skip


def test_the_shorthand_is_a_schema_with_typed_columns() -> None:
    short = {"fields": FIELDS, "required": ["country"], "title": "Orders", "description": "What was sold"}
    assert is_shorthand(short)
    document = expand(short)
    assert not is_shorthand(document)
    assert check_document(json.dumps(document)) == document
    assert (document["$schema"], document["title"]) == (DYNAMIC, "Orders")
    check = validator(document)
    assert check.is_valid({"country": "DE", "amount": 1, "count": 2, "active": True})
    for wrong in ({}, {"country": 1}, {"country": "DE", "count": 0.5}, {"country": "DE", "active": 1}):
        assert not check.is_valid(wrong)
    assert check.is_valid({"country": "DE", "other": 1}), "undeclared properties are accepted"


@pytest.mark.parametrize(
    ("short", "says"),
    [
        ({}, '"fields" must name at least one field'),
        ({"fields": {}}, '"fields" must name at least one field'),
        ({"fields": ["a"]}, '"fields" must name at least one field'),
        ({"fields": {"a": "text"}}, "field 'a' has no known type: 'text' is none"),
        ({"fields": {"a": None}}, "field 'a' has no known type"),
        ({"fields": {"a": {"type": "string"}}}, "field 'a' has no known type"),
        ({"fields": {"a": "string"}, "required": ["b"]}, '"required" must list declared fields'),
        ({"fields": {"a": "string"}, "required": "a"}, '"required" must list declared fields'),
        ({"fields": {"a": "string"}, "field": {}}, "the shorthand has no 'field'"),
    ],
)
def test_a_wrong_shorthand_is_the_users_error(short: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        expand(short)
    assert says in str(caught.value)
