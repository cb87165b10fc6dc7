"""Small documents of a tenant's engines that would cost much: time without end, or memory a thousandfold.

Processes that serve all tenants parse documents of this size themselves.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import msgspec
import orjson
import pytest
from pyiceberg.table.metadata import TableMetadata
from support.counting import count_calls
from support.rest_catalog import VIEW
from test_lake_parsing import MIB, memory, table

from pulse_pipelines.lake import outline, parsing, updates, views
from pulse_pipelines.lake.errors import Malformed
from pulse_pipelines.lake.java_compat import TableIds
from pulse_pipelines.query import snapshots
from pulse_pipelines.sql import pruning


def column(
    number: int, *members: dict[str, Any], name: str | None = None, kind: str = "int"
) -> dict[str, Any]:
    """A required column, with members a struct."""
    type_ = {"type": "struct", "fields": list(members)} if members else kind
    return {"id": number, "name": name or f"c{number}", "required": True, "type": type_}


def schema(*columns: dict[str, Any], number: int = 0, identifiers: Sequence[int] = ()) -> dict[str, Any]:
    struct = {"type": "struct", "schema-id": number, "fields": list(columns)}
    return struct | ({"identifier-field-ids": list(identifiers)} if identifiers else {})


RING = schema(
    column(1, column(2, column(3)), name="a"),
    column(2, column(1, column(4)), name="b"),
    identifiers=[3],
)
"""Column 2 is in column 1, and the other way round: whoever goes from 3 outwards never arrives."""
SORTED = {"direction": "asc", "null-order": "nulls-first"}
ELEMENTS = schema({"id": 1, "name": "a", "type": {"type": "list", "element-id": 1, "element": "int"}})
ENTRIES = schema(
    {"id": 1, "name": "a", "type": {"type": "map", "key-id": 2, "key": "int", "value-id": 2, "value": "int"}}
)
DOCUMENTS: dict[str, tuple[type[msgspec.Struct], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "table": (outline.TABLE, lambda struct: table() | {"schemas": [struct]}),
    "table of version 1": (outline.TABLE, lambda struct: table() | {"schema": struct}),
    "new table": (outline.NEW_TABLE, lambda struct: {"schema": struct}),
    "commit": (outline.COMMIT, lambda struct: {"updates": [{"action": "add-schema", "schema": struct}]}),
    "new view": (outline.NEW_VIEW, lambda struct: {"schema": struct, "view-version": VIEW}),
    "view": (outline.VIEW, lambda struct: {"schemas": [struct], "versions": [VIEW], "version-log": []}),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_each_column_has_an_id_of_its_own(kind: str) -> None:
    """pyiceberg would go round in a circle, and keep each step."""
    checked, of_schema = DOCUMENTS[kind]
    outline.check(of_schema(schema(column(1, column(2)), column(3))), checked)
    for wrong in (RING, ELEMENTS, ENTRIES):
        with pytest.raises(ValueError, match=r"two columns of a schema have the id \d"):
            outline.check(of_schema(wrong), checked)


def test_a_repeated_identifier_column_is_refused() -> None:
    repeated = schema(column(1), identifiers=[1] * 1_000)
    with pytest.raises(ValueError, match="more columns than there are"):
        parsing.table(table() | {"schemas": [repeated]})


def test_a_long_name_is_not_repeated_for_each_column_within() -> None:
    """pyiceberg has the full name of each column: 600 MB of these 240 kB."""
    members = [column(number) for number in range(2, 2_000)]
    wide = schema(column(1, *members, name="n" * 128_000))
    document = orjson.loads(orjson.dumps(table() | {"schemas": [wide]}))
    with memory(4 * MIB), pytest.raises(ValueError, match="names of its columns have more than"):
        parsing.table(document)


def with_parents(parents: dict[int, int | None]) -> TableMetadata:
    """A table whose snapshots have these parents; the last one is current."""
    document = table(len(parents))
    for snapshot, (number, parent) in zip(document["snapshots"], parents.items(), strict=True):
        snapshot |= {"snapshot-id": number, "parent-snapshot-id": parent}
    document |= {"current-snapshot-id": number, "snapshot-log": []}
    document["refs"]["main"]["snapshot-id"] = number
    return parsing.table(document)


@pytest.mark.parametrize(
    ("parents", "history"),
    [
        ({1: None, 2: 1, 3: 2}, [3, 2, 1]),
        ({2: 1, 3: 2}, [3, 2]),
        ({1: 1}, [1]),
        ({1: 3, 2: 1, 3: 2}, [3, 2, 1]),
        ({1: 2, 2: 1, 3: 2}, [3, 2, 1]),
    ],
)
def test_a_snapshot_is_once_in_its_history(parents: dict[int, int | None], history: list[int]) -> None:
    ancestors = islice(snapshots.history(with_parents(parents)), 10)
    assert [snapshot.snapshot_id for snapshot in ancestors] == history


def partitioned(fields: int, schemas: int = 1, members: int = 0) -> TableMetadata:
    """A table with so many partition fields of a column, and schemas that have it."""
    of_spec = [
        {"source-id": 1, "field-id": 1_000 + n, "name": f"p{n}", "transform": f"bucket[{n + 1}]"}
        for n in range(fields)
    ]
    inner = [column(2 + number) for number in range(members)]
    structs = [schema(column(1, *inner, kind="uuid"), number=number) for number in range(schemas)]
    return parsing.table(
        table() | {"schemas": structs, "partition-specs": [{"spec-id": 0, "fields": of_spec}]}
    )


def test_schemas_are_not_read_for_each_partition_field() -> None:
    """Of 240 kB a query would compare two million pairs, in the API's process."""
    small, twice = partitioned(50, schemas=50), partitioned(100, schemas=100)
    assert count_calls(lambda: pruning.misjudges(twice)) < 3 * count_calls(lambda: pruning.misjudges(small))
    before, after = (
        count_calls(lambda document=document: pruning.timestamp_fields(document))
        for document in (small, twice)
    )
    assert after < 3 * before


def test_a_struct_is_not_described_for_each_partition_field() -> None:
    """Registered, of 250 kB a hundred megabytes of errors were made."""

    def check(metadata: TableMetadata) -> int:
        with pytest.raises(ValueError, match=r"now struct<.*is in a partition spec") as raised:
            updates.check(metadata)
        return len(str(raised.value))

    small, twice = partitioned(50, members=50), partitioned(100, members=100)
    assert max(check(small), check(twice)) < 300
    assert count_calls(lambda: check(twice)) < 3 * count_calls(lambda: check(small))


def test_a_commit_adds_few_schemas() -> None:
    added = [
        {"action": "add-schema", "schema": schema(column(1), number=number)}
        for number in range(updates.MOST_ADDED + 1)
    ]
    updates.parsed({"updates": added[1:]})
    with pytest.raises(Malformed, match="adds 100 schemas"):
        updates.parsed({"updates": added})


def tags(first: int, count: int) -> updates.Updates:
    update = {"action": "set-snapshot-ref", "type": "tag", "snapshot-id": 1}
    added = [update | {"ref-name": f"t{number}"} for number in range(first, first + count)]
    return updates.parsed({"updates": added})[1]


def test_a_commit_copies_few_branches_and_tags() -> None:
    """9,000 new tags took half a minute in one of three processes that serve all tenants."""
    ref = {"type": "tag", "snapshot-id": 1}
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": "s3://b/t/m.avro"}
    snapshot |= {"summary": {"operation": "append"}, "schema-id": 0}
    document = table() | {"snapshots": [snapshot], "last-sequence-number": 1}
    current = parsing.table(document | {"refs": {f"r{number}": ref for number in range(9_000)}})
    following = updates.apply(current, tags(0, 100), None, current.location)
    assert len(following.refs) == len(current.refs) + 100
    with pytest.raises(Malformed, match="too many for a commit"):
        updates.apply(current, tags(0, 200), None, current.location)
    with pytest.raises(Malformed, match="too many for a commit"):
        updates.apply(parsing.table(document), tags(0, 2_000), None, current.location)


@pytest.mark.parametrize(
    ("part", "update"),
    [
        ("properties", {"action": "set-properties", "updates": {"a": "b"}}),
        ("properties", {"action": "remove-properties", "removals": ["a"]}),
        ("statistics", {"action": "remove-statistics", "snapshot-id": 1}),
        ("partition-statistics", {"action": "remove-partition-statistics", "snapshot-id": 1}),
    ],
)
def test_a_commit_copies_few_entries(part: str, update: dict[str, Any]) -> None:
    """10,000 changes of 300,000 properties took a minute, and as long again in each commit."""
    file = {"snapshot-id": 1, "statistics-path": "s3://b/t/s", "file-size-in-bytes": 1}
    file |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    entries: Any = {f"p{number}": "" for number in range(9_000)} if part == "properties" else [file] * 9_000
    current = parsing.table(table() | {part: entries})
    for count, fits in ((100, True), (200, False)):
        changes = updates.parsed({"updates": [update] * count})[1]
        with nullcontext() if fits else pytest.raises(Malformed, match="too many for a commit"):
            updates.apply(current, changes, None, current.location)


def test_a_large_change_of_properties_is_one_change() -> None:
    names = {f"p{number}": "" for number in range(20_000)}
    update = {"action": "set-properties", "updates": names}
    following = updates.apply(
        parsing.table(table()), updates.parsed({"updates": [update]})[1], None, "s3://b/t"
    )
    assert len(following.properties) >= len(names)
    with pytest.raises(Malformed, match="too many for a commit"):
        updates.apply(parsing.table(table()), updates.parsed({"updates": [update] * 8})[1], None, "s3://b/t")


@pytest.mark.parametrize("kind", ["schema", "spec", "sort-order"])
def test_an_added_schema_is_not_compared_with_every_column_there_is(kind: str) -> None:
    """100 added schemas, of a table with 300 of 400 columns, held a worker for half a minute."""

    def of(number: int, size: int) -> dict[str, Any]:
        if kind == "schema":
            return schema(*(column(1 + n) for n in range(size)), column(1_000 + number), number=number)
        fields = [
            {"source-id": 1, "transform": f"bucket[{2 + n + (number if n == size - 1 else 0)}]"}
            | ({"field-id": 1_000 + n, "name": f"p{n}"} if kind == "spec" else SORTED)
            for n in range(size)
        ]
        return {"spec-id" if kind == "spec" else "order-id": number, "fields": fields}

    def cost(size: int) -> int:
        part = {"schema": "schemas", "spec": "partition-specs", "sort-order": "sort-orders"}[kind]
        enlarged = {part: [*table().get(part, []), *(of(number, 20) for number in range(1, size))]}
        current = parsing.table(table() | enlarged)
        added = [{"action": f"add-{kind}", kind: of(500 + number, 20)} for number in range(size // 2)]
        ids = TableIds(current)
        return count_calls(
            lambda: [list(ids.put_right(update)) for update in updates.parsed({"updates": added})[1]]
        )

    assert cost(100) < 3 * cost(50)


def test_an_added_version_of_a_view_is_not_compared_with_every_other() -> None:
    """A commit of 85 kB took a quarter of a second of all threads, and one of 3.4 MB a worker for 72 s."""

    def version(number: int) -> dict[str, Any]:
        return VIEW | {
            "version-id": number,
            "representations": [{"type": "sql", "sql": f"{number}", "dialect": "a"}],
        }

    def cost(size: int) -> int:
        view = {"schemas": [schema(column(1))], "versions": [version(n) for n in range(1, size)]}
        view |= {
            "current-version-id": 1,
            "version-log": [],
            "properties": {"version.history.num-entries": "9999"},
        }
        changes: list[dict[str, Any]] = []
        for number in range(size, 2 * size):
            changes.append({"action": "add-view-version", "view-version": version(number)})
            changes.append({"action": "set-current-view-version", "view-version-id": -1})
        return count_calls(lambda: views.applied(view, changes))

    assert cost(400) < 3 * cost(200)


def test_many_updates_are_left_to_another_process() -> None:
    """Each copies the metadata: 4,000, of 240 kB together, took half a second of all threads."""
    update = {"action": "set-properties", "updates": {"a": "b"}}
    limit = parsing.SMALL // updates.UPDATE_BYTES
    with parsing.only_small():
        assert len(updates.parsed({"updates": [update] * limit})[1]) == limit
        with pytest.raises(parsing.Large):
            updates.parsed({"updates": [update] * (limit + 1)})
    assert len(updates.parsed({"updates": [update] * (limit + 1)})[1]) == limit + 1
