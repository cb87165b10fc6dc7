"""What a tenant's engines wrote is weighed before it is parsed, and parsed up to the first error."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from pyiceberg.table.metadata import TableMetadataUtil
from support.rest_catalog import SCHEMA, VIEW, snapshot

from pulse_pipelines.lake import outline, parsing, updates
from pulse_resources.iceberg.document_weight import TooLarge, check_weight

MIB = 2**20
AT = "s3://pulse/iceberg/pulse_x/_own/0123456789abcdef0123456789abcdef"


@contextmanager
def memory(most: int) -> Iterator[None]:
    """Python's objects made meanwhile take so many bytes at most."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


def schema(columns: int, number: int = 0) -> dict[str, Any]:
    fields = [
        {
            "id": n,
            "name": f"a_column_{n}",
            "required": False,
            "type": "timestamptz",
            "doc": "In words, and: so",
        }
        for n in range(1, columns + 1)
    ]
    return {"type": "struct", "schema-id": number, "fields": fields}


def table(snapshots: int = 1, columns: int = 3, schemas: int = 1) -> dict[str, Any]:
    """Metadata of a table, as Spark writes it."""
    summary = {"operation": "append"} | {f"total-number-of-things-{n}": "1234567890" for n in range(21)}
    snapshot_documents = [
        {
            "snapshot-id": 2**60 + n,
            "parent-snapshot-id": 2**60 + n - 1,
            "sequence-number": n,
            "timestamp-ms": 1_700_000_000_000 + n,
            "manifest-list": f"{AT}/metadata/snap-{2**60 + n}-1-01234567-89ab-cdef-0123-456789abcdef.avro",
            "schema-id": 0,
            "summary": summary,
        }
        for n in range(snapshots)
    ]
    log = [{name: entry[name] for name in ("snapshot-id", "timestamp-ms")} for entry in snapshot_documents]
    files = [{"metadata-file": f"{AT}/metadata/{n}.metadata.json", "timestamp-ms": n} for n in range(100)]
    return {
        "format-version": 2,
        "table-uuid": "01234567-89ab-cdef-0123-456789abcdef",
        "location": AT,
        "last-sequence-number": snapshots,
        "last-updated-ms": 1_700_000_000_000 + snapshots,
        "last-column-id": columns,
        "schemas": [schema(columns, number) for number in range(schemas)],
        "current-schema-id": 0,
        "partition-specs": [
            {
                "spec-id": 0,
                "fields": [{"source-id": 1, "field-id": 1000, "name": "day", "transform": "day"}],
            }
        ],
        "default-spec-id": 0,
        "last-partition-id": 1000,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {"owner": "x"},
        "current-snapshot-id": snapshot_documents[-1]["snapshot-id"],
        "refs": {"main": {"snapshot-id": snapshot_documents[-1]["snapshot-id"], "type": "branch"}},
        "snapshots": snapshot_documents,
        "snapshot-log": log,
        "metadata-log": files,
        "statistics": [],
    }


BOMBS = {
    "objects": b"[" + b"{}," * (20 * MIB) + b"{}]",
    "objects in 20 MB": b"[" + b"{}," * (6 * MIB) + b"{}]",
    "objects in an object": b'{"location": [' + b"{}," * (6 * MIB) + b"{}]}",
    "arrays": b"[" + b"[]," * (6 * MIB) + b"[]]",
    "open arrays": b"[" * (19 * MIB),
    "numbers": b"[" + b"1," * (9 * MIB) + b"1]",
    "texts": b"[" + b'"",' * (6 * MIB) + b"1]",
    "keys": b"{" + b",".join(b'"%x":1' % n for n in range(700_000)) + b"}",
    "nested": b"[" + b",".join([b'{"a":' * 500 + b"1" + b"}" * 500] * 300) + b"]",
    "one text": b'"' + b"x" * (21 * MIB) + b'"',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_document_that_would_take_much_memory_is_not_parsed(name: str) -> None:
    with memory(MIB), pytest.raises(TooLarge, match="metadata file is too large"):
        parsing.loads(BOMBS[name])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b'"x"', b'{"a": ' + b"[" * 2_000, b"\xff"])
def test_a_document_that_is_not_an_object_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parsing.loads(content)


def test_a_large_table_is_read_and_written() -> None:
    """Five thousand snapshots, a thousand columns, ten schemas; it is what pyiceberg makes of it."""
    content = orjson.dumps(table(5_000, 1_000, 10))
    check_weight(content, parsing.WRITTEN)
    with memory(20 * len(content)):  # of which 12 are address space that the parser does not touch
        document = parsing.loads(content)
    assert parsing.table(document) == TableMetadataUtil.parse_obj(document)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_table_parsed_in_parts_equals_one_parsed_as_a_whole(version: int) -> None:
    document = (
        table(3, schemas=2) | {"format-version": version} | ({"next-row-id": 0} if version == 3 else {})
    )
    if version == 1:
        document |= {"schema": document["schemas"][0], "partition-spec": []}
    whole = TableMetadataUtil.parse_obj(document)
    parsed = parsing.table(document)
    assert parsed == whole
    assert updates.document(parsed) == updates.document(whole)


MANY = 30_000


def fields(**more: Any) -> dict[str, Any]:
    return {"schemas": [{"type": "struct", "schema-id": 0, "fields": [more] * MANY}]}


FAULTS: dict[str, dict[str, Any]] = {
    # Of each of which pyiceberg alone tells tens of thousands of errors.
    "empty snapshots": {"snapshots": [{}] * MANY},
    "numbers as snapshots": {"snapshots": [1] * MANY},
    "numbers of snapshots": {
        "snapshots": [{"snapshot-id": 1, "manifest-list": "x", "schema-id": "x"}] * MANY
    },
    "summaries": {"snapshots": [{"snapshot-id": 1, "manifest-list": "x", "summary": 1}] * MANY},
    "empty fields": fields(),
    "types": fields(id=1, name="x", type="xint"),
    "nested types": fields(id=1, name="x", type={"type": "list", "element-id": 2, "element": "x"}),
    "no types": fields(id=1, name="x", type={"type": "x"}),
    "defaults": fields(id=1, name="x", type="int", **{"initial-default": []}),
    "docs": fields(id=1, name="x", type="int", doc=1),
    "schemas": {"schemas": [{"schema-id": "x"}] * MANY},
    "specs": {"partition-specs": [{"spec-id": "x"}] * MANY},
    "spec fields": {"partition-specs": [{"fields": [{}] * MANY}]},
    "orders": {"sort-orders": [{"order-id": "x"}] * MANY},
    "order fields": {"sort-orders": [{"fields": [{}] * MANY}]},
    "refs": {"refs": {str(n): {} for n in range(MANY)}},
    "refs of no kind": {"refs": {str(n): {"snapshot-id": 1, "type": "x"} for n in range(MANY)}},
    "log": {"snapshot-log": [{}] * MANY},
    "files": {"metadata-log": [{}] * MANY},
    "statistics": {"statistics": [{}] * MANY},
    "partition statistics": {"partition-statistics": [{}] * MANY},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_document_of_many_errors_is_left_at_the_first(fault: str) -> None:
    document = orjson.loads(orjson.dumps(table() | FAULTS[fault]))
    with memory(16 * MIB), pytest.raises(updates.WRONG) as raised:
        parsing.table(document)
    assert getattr(raised.value, "error_count", lambda: 1)() < 10
    assert len(updates.wrong(raised.value).message) < 500


@pytest.mark.parametrize(
    "fault",
    [
        {"versions": [{}] * MANY},
        {"versions": [VIEW | {"version-id": "x"}] * MANY},
        {"version-log": [{}] * MANY},
        {"schemas": [{"fields": [{}] * MANY}]},
    ],
)
def test_a_view_of_many_errors_is_left_at_the_first(fault: dict[str, Any]) -> None:
    view = {
        "view-uuid": "x",
        "format-version": 1,
        "location": AT,
        "schemas": [schema(1)],
        "current-version-id": 1,
        "versions": [VIEW],
        "version-log": [{"timestamp-ms": 1, "version-id": 1}],
    }
    parsing.check_view(view)
    with memory(16 * MIB), pytest.raises(updates.WRONG):
        parsing.check_view(view | fault)


@pytest.mark.parametrize(
    "body",
    [
        {"updates": [{}] * MANY},
        {"updates": [1] * MANY},
        {"updates": [{"action": "set-properties", "updates": {}}] * MANY},
        {"updates": [{"action": "add-schema", "schema": {"fields": [{}] * MANY}}]},
        {"updates": [{"action": "remove-snapshots", "snapshot-ids": ["x"] * MANY}]},
        {"requirements": [{}] * MANY},
        {"updates": 1},
    ],
)
def test_a_commit_of_many_errors_is_left_at_the_first(body: dict[str, Any]) -> None:
    updates.parsed({"updates": [snapshot(f"{AT}/x"), {"action": "add-schema", "schema": SCHEMA}]})
    with memory(4 * MIB), pytest.raises(updates.Malformed):
        updates.parsed(body)


def test_an_unknown_type_is_refused_without_the_pattern() -> None:
    with pytest.raises(ValueError, match=r"^Expected a type of Iceberg - at `\$.schema.fields\[0\].type`$"):
        outline.check({"schema": {"fields": [{"id": 1, "name": "x", "type": "xint"}]}}, outline.NEW_TABLE)
