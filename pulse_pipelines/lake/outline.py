"""The outline of Iceberg's documents, checked before pyiceberg parses them.

pyiceberg collects every error of a document, and holds up all other threads meanwhile: a megabyte of `{},{},`
takes ten seconds and a gigabyte. This check ends at the first error, and what it accepts costs pyiceberg what
a real document of that size would. The check is not complete: members that it does not name may be anything.

pyiceberg follows a column's id to that of the column around it, without end where ids occur twice, and makes
for each column a text of the names of all columns around it. So the columns of schemas are checked, too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class _Outline(msgspec.Struct, rename="kebab", gc=False):
    pass


_Primitive = Annotated[
    str,
    Meta(
        pattern=r"\A(boolean|int|long|float|double|string|date|time|timestamp(tz)?(_ns)?|timestamptz_ns|uuid|binary"
        r"|unknown|decimal\(\s*\d+\s*,\s*\d+\s*\)|fixed\[\s*\d+\s*\]|geo(metry|graphy)(\(.*\))?)\Z"
    ),
]
"""Each type that pyiceberg knows: of another it tells several errors a column."""
_PATTERN = re.compile("`str` matching regex '.*'")
_Default = str | int | float | bool | None
_PATHS = 8 * 1024 * 1024
"""Characters of the full names of all columns in a document: 100,000 columns of 80 each."""


class _Field(_Outline):
    id: int
    name: str
    type: "_Primitive | _Struct | _List | _Map"
    required: bool = False
    doc: str | None = None
    initial_default: _Default = None
    write_default: _Default = None


class _Struct(_Outline, tag_field="type", tag="struct"):
    fields: list[_Field]


class _List(_Outline, tag_field="type", tag="list"):
    element_id: int
    element: "_Primitive | _Struct | _List | _Map"


class _Map(_Outline, tag_field="type", tag="map"):
    key_id: int
    key: "_Primitive | _Struct | _List | _Map"
    value_id: int
    value: "_Primitive | _Struct | _List | _Map"


_Type = str | _Struct | _List | _Map


class _Schema(_Outline):
    fields: list[_Field] = []
    schema_id: int | None = None
    identifier_field_ids: list[int] | None = None


class _SpecField(_Outline):
    name: str
    transform: str
    source_id: int | None = None
    field_id: int | None = None


class _Spec(_Outline):
    spec_id: int | None = None
    fields: list[_SpecField] = []


class _OrderField(_Outline):
    transform: str
    direction: str
    null_order: str
    source_id: int | None = None


class _Order(_Outline):
    order_id: int | None = None
    fields: list[_OrderField] = []


class _Snapshot(_Outline):
    snapshot_id: int
    manifest_list: str


class _Ref(_Outline):
    snapshot_id: int
    type: Literal["branch", "tag"]


class _SnapshotLogEntry(_Outline):
    timestamp_ms: int
    snapshot_id: int


class _File(_Outline):
    timestamp_ms: int
    metadata_file: str


class _Blob(_Outline):
    type: str
    snapshot_id: int
    sequence_number: int
    fields: list[int]
    properties: dict[str, str] | None = None


class _PartitionStatistics(_Outline):
    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int


class _Statistics(_PartitionStatistics):
    file_footer_size_in_bytes: int
    blob_metadata: list[_Blob]


class _Table(_Outline):
    schema: _Schema | None = None
    schemas: list[_Schema] = []
    partition_spec: list[_SpecField] | None = None
    partition_specs: list[_Spec] = []
    sort_orders: list[_Order] = []
    snapshots: list[_Snapshot] = []
    refs: dict[str, _Ref] = {}
    snapshot_log: list[_SnapshotLogEntry] = []
    metadata_log: list[_File] = []
    statistics: list[_Statistics] = []
    partition_statistics: list[_PartitionStatistics] = []


class _Representation(_Outline):
    type: str
    sql: str
    dialect: str


class _Version(_Outline):
    schema_id: int
    representations: list[_Representation]
    default_namespace: list[str]
    summary: dict[str, str] | None = None


class _VersionEntry(_Outline):
    timestamp_ms: int
    version_id: int


class _View(_Outline):
    schemas: list[_Schema]
    versions: list[_Version]
    version_log: list[_VersionEntry]


class _Requirement(_Outline):
    type: str


class _Update(_Outline):
    action: str
    schema: _Schema | None = None
    spec: _Spec | None = None
    sort_order: _Order | None = None
    snapshot: _Snapshot | None = None
    statistics: _Statistics | None = None
    partition_statistics: _PartitionStatistics | None = None
    view_version: _Version | None = None
    removals: list[str] | None = None
    snapshot_ids: list[int] | None = None
    schema_ids: list[int] | None = None
    spec_ids: list[int] | None = None


class _Commit(_Outline):
    requirements: list[_Requirement] | None = None
    updates: list[_Update] | None = None


class _NewTable(_Outline):
    schema: _Schema
    partition_spec: _Spec | None = None
    write_order: _Order | None = None


class _NewView(_Outline):
    schema: _Schema
    view_version: _Version


TABLE, VIEW, COMMIT, NEW_TABLE, NEW_VIEW = _Table, _View, _Commit, _NewTable, _NewView


def check(document: Mapping[str, Any], outline: type[msgspec.Struct]) -> None:
    """Raise ValueError, at the first error, unless a document has an outline."""
    try:
        checked = msgspec.convert(document, outline, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(_PATTERN.sub("a type of Iceberg", str(error))) from None
    _check_columns(_schemas(checked))


def _schemas(checked: msgspec.Struct) -> Iterator[_Schema]:
    """All schemas of a document."""
    for part in (checked, *(getattr(checked, "updates", None) or ())):
        yield from getattr(part, "schemas", ())
        if (schema := getattr(part, "schema", None)) is not None:
            yield schema


def _check_columns(schemas: Iterable[_Schema]) -> None:
    characters = 0
    for schema in schemas:
        ids = set[int]()
        for number, length in _columns(schema):
            characters += length
            if number in ids:
                raise ValueError(f"two columns of a schema have the id {number}")
            ids.add(number)
            if characters > _PATHS:
                raise ValueError(f"the names of its columns have more than {_PATHS:,} characters")
        if len(schema.identifier_field_ids or ()) > len(ids):
            raise ValueError("identifier-field-ids names more columns than there are")


def _columns(schema: _Schema) -> Iterator[tuple[int, int]]:
    """The id of each column of a schema, nested ones included, and the length of its full name."""
    pending: list[tuple[int, int, _Type]] = [
        (field.id, len(field.name), field.type) for field in schema.fields
    ]
    while pending:
        number, length, kind = pending.pop()
        yield number, length
        match kind:
            case _Struct():
                pending += [(field.id, length + 1 + len(field.name), field.type) for field in kind.fields]
            case _List():
                pending.append((kind.element_id, length + len(".element"), kind.element))
            case _Map():
                pending.append((kind.key_id, length + len(".key"), kind.key))
                pending.append((kind.value_id, length + len(".value"), kind.value))
