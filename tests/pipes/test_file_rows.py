"""Rows of files and what becomes of them, without any service: each line is a row, or is told."""

import base64
import csv
import gzip
import io
import itertools
import json
import ssl
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from support.clock import Clock
from support.files import web as server

from pulse_pipelines.domain.pipe_sources import Files, Format
from pulse_pipelines.pipes import rows, schema_inference, web
from pulse_pipelines.pipes.files import formats, gzipped, load
from pulse_pipelines.pipes.files.stores import Listed, refused, store
from pulse_pipelines.pipes.rows import Maker
from pulse_resources.errors import Conflict, NotFound, Transient, UserError
from pulse_resources.local import tls
from pulse_resources.local.layout import Layout

MAKER = Maker("planes", "2026-11-25T00:00:00Z", ("tail",))


def read(content: bytes, form: Format = Format.NDJSON, **properties: Any) -> list[formats.Row]:
    files = Files("shop", "x", form, ("tail",))
    return list(formats.rows(io.BytesIO(content), files, {"properties": properties}, "x"))


def schema_of(content: bytes, form: Format = Format.NDJSON) -> dict[str, Any] | None:
    return formats.schema(io.BytesIO(content), Files("shop", "x", form, ("tail",)), "x")


def test_a_number_stays_as_it_was_written() -> None:
    (row,) = read(b'{"tail": "N1", "n": 12345678901234567890123, "f": 1.10, "_x": 1}\n')
    assert row.values is not None
    key, payload = MAKER.event(row.values, "x", 1)
    assert key == b"N1"
    assert b'"data":{"tail":"N1","n":12345678901234567890123,"f":1.10}' in payload


def test_a_nested_value_is_not_decoded() -> None:
    """Neither to see its type, nor as a key or a time: its objects would take thirty times its bytes."""
    line = b'{"tail": [' + b"{}," * 1_000_000 + b"{}]}"
    values = rows.members(line)
    tracemalloc.start()
    try:
        assert schema_inference.schema([values]) == {"type": "object", "properties": {"tail": {}}}
        assert rows.key_of(values, ("tail",)) is None
        assert rows.time_of(values["tail"]) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(line)


@pytest.mark.parametrize(
    ("row", "key", "expected"),
    [
        ({"a": "x"}, ("a",), "x"),
        ({"a": msgspec.Raw(b"7")}, ("a",), "7"),
        ({"a": msgspec.Raw(b"1.10")}, ("a",), "1.10"),
        ({"a": msgspec.Raw(b"true")}, ("a",), "true"),
        ({"a": msgspec.Raw(b'"\\u00e9"')}, ("a",), "é"),
        ({"a": 1, "b": "x/y"}, ("a", "b"), '["1", "x/y"]'),
        ({"a": msgspec.Raw(b"null")}, ("a",), None),
        ({"a": msgspec.Raw(b"[1]")}, ("a",), None),
        ({"a": ""}, ("a",), None),
        ({"a": "\udc80"}, ("a",), None),
        ({"a": 1}, ("a", "b"), None),
        ({}, ("a",), None),
    ],
)
def test_the_key_is_text(row: dict[str, Any], key: tuple[str, ...], expected: str | None) -> None:
    assert rows.key_of(row, key) == expected


def test_a_row_without_a_key_is_kept_as_it_was() -> None:
    event = json.loads(MAKER.event({"s": msgspec.Raw(b'"x"'), "n": 1}, "f", 3)[1])
    assert event["data"] == '{"s":"x","n":1}'
    event = json.loads(MAKER.event({"s": "\udcff", "n": msgspec.Raw(b"1e400")}, "f", 3)[1])
    assert event["data"] == '{"s": "\\udcff", "n": "1e400"}'


def test_a_row_of_parquet_with_a_value_that_is_none_keeps_its_id() -> None:
    rows = pa.table({"tail": ["N1"], "x": [1], "at": pa.array([2**62], pa.timestamp("us"))})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    (row,) = read(sink.getvalue().to_pybytes(), Format.PARQUET)
    key, payload = load.event(MAKER, "f", row)
    event = json.loads(payload)
    assert (key, event["event_id"], event["data"]) == (b"N1", "N1", '{"tail":"N1","x":1}')
    assert event["context"]["error"].startswith("at has an invalid value")


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_timestamps_of_int96_keep_their_year_and_their_digits(unit: str) -> None:
    expected = ["1969-12-31T23:59:59.999999", "2026-01-01T00:00:00", "2026-01-01T00:00:00.12", None]
    if unit == "us":
        expected += ["9999-12-31T23:59:59.999999", "0001-01-01T00:00:00", "1582-10-04T00:00:00.1"]
    else:
        expected += ["2026-01-01T00:00:00.000000001", "1969-12-31T23:59:59.999999999"]
    at = pa.array(expected, pa.string()).cast(pa.timestamp(unit))
    rows = pa.table(
        {"tail": [f"N{n}" for n in range(len(expected))] * 600, "at": pa.concat_arrays([at] * 600)}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, use_deprecated_int96_timestamps=True, row_group_size=1_700)
    read_rows = read(sink.getvalue().to_pybytes(), Format.PARQUET)
    assert [(row.values or {}).get("at") for row in read_rows] == expected * 600


_NS = pa.time64("ns")
TIMES: dict[str, tuple[pa.DataType, pa.DataType, Any, Any]] = {
    "time": (pa.int64(), _NS, 86_399_999_999_999, "23:59:59.999999999"),
    "whole seconds": (pa.int64(), _NS, 3_600_000_000_000, "01:00:00"),
    "list": (pa.list_(pa.int64()), pa.list_(_NS), [1, None], ["00:00:00.000000001", None]),
    "large list": (pa.large_list(pa.int64()), pa.large_list(_NS), [1], ["00:00:00.000000001"]),
    "list of one": (pa.list_(pa.int64(), 1), pa.list_(_NS, 1), [1], ["00:00:00.000000001"]),
    "last hour": (
        pa.int64(),
        pa.timestamp("us", "Europe/Berlin"),
        253_402_300_799_999_999,
        "9999-12-31T23:59:59.999999+00:00",
    ),
    "zone that nobody knows": (
        pa.int64(),
        pa.timestamp("us", "Mars/Base"),
        0,
        "1970-01-01T00:00:00+00:00",
    ),
    "struct": (
        pa.struct([("a", pa.list_(pa.int64()))]),
        pa.struct([("a", pa.list_(_NS))]),
        {"a": [1_500_000_000]},
        {"a": ["00:00:01.5"]},
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        pa.map_(pa.string(), _NS),
        [("a", 120)],
        [["a", "00:00:00.00000012"]],
    ),
    "duration": (pa.int64(), pa.duration("ns"), 90_061_000_000_001, "P1DT3661.000000001S"),
    "end of the day": (pa.int64(), pa.time64("us"), 86_400_000_000, "24:00:00"),
    "end of the day in ms": (pa.int32(), pa.time32("ms"), 86_400_000, "24:00:00"),
    "time in ms": (pa.int32(), pa.time32("ms"), 3_723_050, "01:02:03.05"),
    "end of a day in a list": (
        pa.list_(pa.int64()),
        pa.list_(pa.time64("us")),
        [86_400_000_000, 1],
        ["24:00:00", "00:00:00.000001"],
    ),
    "negative duration": (pa.int64(), pa.duration("ns"), -1, "-PT0.000000001S"),
    "days": (pa.int64(), pa.duration("ns"), 172_800_000_000_000, "P2D"),
    "no duration": (pa.int64(), pa.duration("ns"), 0, "PT0S"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_and_durations_of_parquet_keep_their_nanoseconds(name: str) -> None:
    stored, kind, value, expected = TIMES[name]
    sink = io.BytesIO()
    pq.write_table(pa.table({"tail": ["N1"], "v": pa.array([value], stored).cast(kind)}), sink)
    (row,) = read(sink.getvalue(), Format.PARQUET)
    assert row.values == {"tail": "N1", "v": expected}


@pytest.mark.parametrize("value", [86_400_000_001, -1])
def test_a_time_of_parquet_that_no_day_has_is_not_a_value(value: int) -> None:
    (row,) = read(parquet(v=pa.array([value], pa.int64()).cast(pa.time64("us"))), Format.PARQUET)
    assert row.why == "v has an invalid value: a time out of range"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("14 months 3 days 01:02:04.5", "P1Y2M3DT1H2M4.5S"),
        ("0 days", "PT0S"),
        ("49 days", "P49D"),
        ("25 hours", "PT25H"),
        ("0.001 seconds", "PT0.001S"),
    ],
)
def test_an_interval_of_parquet_is_as_postgres_writes_it(value: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    select = f"SELECT 'N1' AS tail, i, {{'a': 1, 'b': [i, NULL]}} AS s FROM (SELECT INTERVAL '{value}' AS i)"
    duckdb.sql(f"COPY ({select}) TO '{file}'")
    (row,) = read(file.read_bytes(), Format.PARQUET)
    assert row.values == {"tail": "N1", "i": expected, "s": {"a": 1, "b": [expected, None]}}


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"tail": ["N1"]} | columns), sink)
    return sink.getvalue().to_pybytes()


_TENSOR = pa.fixed_shape_tensor(pa.float32(), [2])
EXTENSIONS: dict[str, tuple[pa.DataType, pa.Array, Any, dict[str, Any]]] = {
    "bool8": (pa.bool8(), pa.array([1], pa.int8()), True, {"type": ["boolean", "null"]}),
    "bytes": (pa.opaque(pa.binary(), "x", "y"), pa.array([b"\xff"]), "/w==", {"type": ["string", "null"]}),
    "integer": (pa.opaque(pa.int64(), "x", "y"), pa.array([2**62]), 2**62, {"type": ["integer", "null"]}),
    "tensor": (
        _TENSOR,
        pa.array([[0.1, 2]], _TENSOR.storage_type),
        [0.1, 2],
        {"type": ["array", "null"], "items": {"type": ["number", "null"]}},
    ),
    "uuid": (
        pa.uuid(),
        pa.array([bytes(16)], pa.binary(16)),
        str(uuid.UUID(int=0)),
        {"type": ["string", "null"]},
    ),
    "json": (pa.json_(), pa.array(['{"a": 1}']), '{"a": 1}', {"type": ["string", "null"]}),
}


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_value_of_an_arrow_extension_type_is_its_storage_value(name: str, nested: bool) -> None:
    kind, stored, expected, declared = EXTENSIONS[name]
    column: Any = pa.ExtensionArray.from_storage(kind, stored)
    if nested:
        column = pa.StructArray.from_arrays([column], ["x"])
    content = parquet(v=column)
    (row,) = read(content, Format.PARQUET)
    assert row.values is not None
    assert row.values["v"] == ({"x": expected} if nested else expected)
    schema = schema_of(content, Format.PARQUET)
    assert schema is not None
    assert schema["properties"]["v"] == ({} if nested else declared)


@pytest.mark.parametrize("shredded", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_variant_of_parquet_is_refused(nested: bool, shredded: bool) -> None:
    """Its members are bytes of an encoding of its own, and none of the values that it stands for."""
    members = [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary())]
    if shredded:
        members.append(pa.field("typed_value", pa.int64()))
    value = {"metadata": b"\x11\x00\x00", "value": b"\x0c\x01"}
    kind, some = pa.struct(members), [value]
    column = pa.array([some] if nested else some, pa.list_(kind) if nested else kind)
    for reader in (read, schema_of):
        with pytest.raises(UserError, match="column v has the type VARIANT"):
            reader(parquet(v=column), Format.PARQUET)
    like_it = pa.array([{"metadata": b"x", "value": b"y"}])
    (row,) = read(parquet(v=like_it), Format.PARQUET)
    assert row.values == {"tail": "N1", "v": {"metadata": "eA==", "value": "eQ=="}}


SPARK = "org.apache.spark."
EARLY, LATER = [date(1582, 10, 14), date(1582, 10, 15)], [date(1582, 10, 15), date(2026, 1, 1)]
MOMENTS = [datetime(1899, 12, 31, 23), datetime(1900, 1, 1)]


@pytest.mark.parametrize(
    ("footer", "column", "refused"),
    [
        ({}, pa.array(EARLY), 0),
        ({"version": "3.5.1"}, pa.array(EARLY), 0),
        ({"version": "2.4.8"}, pa.array(EARLY), 1),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array(EARLY), 1),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array(LATER), 0),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array([[day] for day in EARLY]), 1),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array([{"x": day} for day in EARLY]), 1),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array(MOMENTS, pa.timestamp("us", "UTC")), 1),
        ({"version": "3.5.1", "legacyDateTime": ""}, pa.array([None, None], pa.date32()), 0),
        ({"version": "3.5.1", "legacyINT96": ""}, pa.array(MOMENTS, pa.timestamp("us")), 1),
        ({"version": "3.5.1", "legacyINT96": ""}, pa.array(EARLY), 0),
    ],
)
def test_a_day_of_the_old_calendar_of_spark_is_refused(
    footer: dict[str, str], column: pa.Array, refused: int
) -> None:
    table = pa.table({"tail": ["N1", "N2"], "v": column})
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({SPARK + key: value for key, value in footer.items()}), sink)
    read_rows = read(sink.getvalue().to_pybytes(), Format.PARQUET)
    assert [row.why.startswith("v has an invalid value") for row in read_rows] == [bool(refused), False]
    assert all("old calendar" in row.why for row in read_rows if row.why)


def test_an_enum_of_parquet_is_text() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"tail": ["N1", "N2"], "mood": ["sad", "\u00dc"]}), sink, store_schema=False)
    text, enum = b"mood\x25\x00\x4c\x1c\x00\x00\x00", b"mood\x25\x08\x4c\x4c\x00\x00\x00"
    assert sink.getvalue().count(text) == 1
    read_rows = read(sink.getvalue().replace(text, enum), Format.PARQUET)
    assert [(row.values or {})["mood"] for row in read_rows] == ["sad", "\u00dc"]


def test_a_list_view_of_parquet_is_a_list() -> None:
    sink = io.BytesIO()
    items = pa.array([[1, None], []], pa.list_view(pa.int32()))
    pq.write_table(pa.table({"tail": ["N1", "N2"], "v": items}), sink)
    schema = schema_of(sink.getvalue(), Format.PARQUET)
    assert schema is not None
    assert schema["properties"]["v"]["type"] == ["array", "null"]
    values = [(row.values or {})["v"] for row in read(sink.getvalue(), Format.PARQUET)]
    assert values == [[1, None], []]


@pytest.mark.parametrize("of_items", [pa.list_view, pa.large_list_view])
def test_times_in_a_list_view_of_parquet_keep_their_nanoseconds(
    of_items: Callable[[pa.DataType], pa.DataType],
) -> None:
    items = pa.array([1, None], pa.int64()).cast(_NS)
    kind = pa.ListViewArray if of_items is pa.list_view else pa.LargeListViewArray
    (row,) = read(parquet(v=kind.from_arrays([0], [2], items)), Format.PARQUET)
    assert row.values == {"tail": "N1", "v": ["00:00:00.000000001", None]}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.float16(), 4108.0, 4108.0),
        (pa.float16(), 65504.0, 65504.0),
        (pa.float16(), 0.1, 0.1),
        (pa.float32(), 123456792.0, 123456792.0),
        (pa.float32(), -0.0, -0.0),
        (pa.float32(), 0.1, 0.1),
        (pa.float32(), 3.4028234663852886e38, 3.4028235e38),
    ],
)
def test_a_whole_number_of_a_short_float_of_parquet_keeps_its_digits(
    kind: pa.DataType, value: float, expected: float
) -> None:
    (row,) = read(parquet(v=pa.array([value], kind)), Format.PARQUET)
    assert row.values is not None
    assert repr(row.values["v"]) == repr(expected)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_first_moment_of_nanoseconds_is_not_a_value(zone: str | None) -> None:
    column = pa.array([{"x": -(2**63)}], pa.struct([("x", pa.int64())]))
    (row,) = read(parquet(v=column.cast(pa.struct([("x", pa.timestamp("ns", zone))]))), Format.PARQUET)
    assert row.why == "v has an invalid value: a moment out of range"


def test_a_row_that_is_too_large_keeps_its_id() -> None:
    key, payload = MAKER.event({"tail": "N1", "x": "y" * rows.LONGEST}, "f", 3)
    event = json.loads(payload)
    assert (key, event["event_id"], event["context"]["line"]) == (b"N1", "N1", 3)
    assert len(payload) < 2 * rows.EXCERPT_BYTES


def test_each_line_of_ndjson_is_a_row_or_an_error() -> None:
    long = b'{"tail": "' + b"x" * (2 * formats.LONGEST_LINE) + b'"}\n'
    deep = b'{"tail": ' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
    read_rows = read(b'\xef\xbb\xbf{"tail": "N1"}\n\n[1]\n' + long + deep + b'\xff\n{"tail": "N2"}')
    assert [(row.line, row.values is not None) for row in read_rows] == [
        (1, True), (3, False), (4, False), (5, False), (6, False), (7, True)]  # fmt: skip


def test_csv_continues_after_an_invalid_line() -> None:
    read_rows = read(b'tail,x\r\nN1,"a\nb"\r\nN2,"a"b\r\nN3\r\nN4,\xff\r\nN5,c\r\n', Format.CSV)
    assert [row.line for row in read_rows] == [2, 4, 5, 6, 7]
    assert [row.values is not None for row in read_rows] == [True, False, False, True, True]
    assert read_rows[0].values == {"tail": "N1", "x": "a\nb"}
    event = json.loads(MAKER.event(read_rows[3].values or {}, "x", 6)[1])
    assert event["context"]["error"] == "x is not UTF-8"
    assert (event["event_id"], event["data"]) == ("N4", '{"tail": "N4", "x": "\\udcff"}')


def test_a_dead_letter_of_csv_has_the_lines_of_the_file() -> None:
    """Also those that a quote has taken: no other row shows that they were there."""
    content = b'tail,x\r\nN1,"open\r\nN2,"b"\r\nN3,"\xc3\xa9",\r\nN4,"never\nN5,\xff\n'
    read_rows = [row for row in read(content, Format.CSV) if row.values is None]
    assert [(row.line, row.text, row.why.partition(":")[0]) for row in read_rows] == [
        (2, b'N1,"open\r\nN2,"b"\r\n', "the lines 2 to 3 are not CSV"),
        (4, b'N3,"\xc3\xa9",\r\n', "the line has 3 values, and the header 2"),
        (5, b'N4,"never\nN5,\xff\n', "the lines 5 to 6 are not CSV"),
    ]


def test_a_carriage_return_outside_of_quotes_cuts_no_value() -> None:
    """In a file whose header ends with a line feed it ends no line: what follows is not a row of its own."""
    content = b'tail,x\nN1,a\rN9,b\rc\nN2,"d\re"\nN3,f\r\r\nN4,"g"\r\nN6,"i"j\rN9,k\nN5,h\r'
    read_rows = read(content, Format.CSV)
    assert [(row.line, row.text, row.why) for row in read_rows if row.values is None] == [
        (2, b"N1,a\rN9,b\rc\n", "the lines 2 to 4 are not CSV: a carriage return is not in quotes"),
        (10, b'N6,"i"j\rN9,k\n', "the lines 10 to 11 are not CSV: ',' expected after '\"'"),
    ]
    assert [row.values for row in read_rows if row.values is not None] == [
        {"tail": "N2", "x": "d\re"},
        {"tail": "N3", "x": "f"},
        {"tail": "N4", "x": "g"},
        {"tail": "N5", "x": "h"},
    ]
    ended_by_returns = read(b"tail,x\rN1,a\rN2,b", Format.CSV)
    assert [row.values for row in ended_by_returns] == [{"tail": "N1", "x": "a"}, {"tail": "N2", "x": "b"}]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, b"5"),
        ({"$ref": "#/$defs/n"}, b"5"),
        ({"enum": [5, 7]}, b"5"),
        ({"const": 5}, b"5"),
        ({"allOf": [{"type": "number"}]}, b"5"),
        ({"type": ["number", "string"]}, "5"),
        ({"anyOf": [{"type": "number"}, {"type": "string"}]}, "5"),
        ({"enum": ["5", 5]}, "5"),
        ({}, "5"),
    ],
    ids=str,
)
def test_a_cell_of_csv_has_the_type_that_a_choice_or_a_reference_declares(
    declared: dict[str, Any], value: Any
) -> None:
    files = Files("shop", "x", Format.CSV, ("tail",))
    schema = {"type": "object", "properties": {"n": declared}, "$defs": {"n": {"type": "integer"}}}
    (row,) = formats.rows(io.BytesIO(b"tail,n\nN1,5\n"), files, schema, "x")
    assert row.values is not None
    assert row.values["n"] == (msgspec.Raw(value) if isinstance(value, bytes) else value)


def test_a_quote_that_never_ends_is_an_error_and_takes_no_more_memory_than_a_line() -> None:
    read_rows = read(b'tail,x\nN1,"' + (b"a" * 999 + b"\n") * 6_000, Format.CSV)
    assert read_rows[0].values is None
    assert len(read_rows[0].text) == rows.EXCERPT_BYTES
    assert csv.field_size_limit() == formats.LONGEST_LINE


@pytest.mark.parametrize(
    "header", [b"", b'"tail,', b"x,y\n", b"tail,tail\n", b"tail,_x\n", b"tail,\n", b"tail,\xff\n"]
)
def test_a_header_that_cannot_be_used_is_refused(header: bytes) -> None:
    with pytest.raises(UserError, match=r"\[(.*, )?file=x\]"):
        read(header + b"N1,2\n", Format.CSV)
    with pytest.raises(UserError, match=r"\[(.*, )?file=x\]"):
        schema_of(header + b"N1,2\n", Format.CSV)


@pytest.mark.parametrize("form", [Format.CSV, Format.NDJSON])
def test_a_file_that_is_not_gzip_is_refused(form: Format) -> None:
    files = Files("shop", "x.gz", form, ("tail",))
    with pytest.raises(UserError, match="damaged"):
        list(formats.rows(io.BytesIO(b"tail,x\nN1,2\n"), files, {}, "x.gz"))


MALFORMED: dict[str, tuple[bytes, Format, str]] = {
    "array": (b'\n[{"tail": "N1"}]\n', Format.NDJSON, "line 2: .*got `array`"),
    "CR": (b'{"tail": "N1"}\r{"tail": "N2"}\r', Format.NDJSON, r"line 1: .*document.*\(char 15\)"),
    "surrogate": (b'{"tail": "\\ud800"}', Format.NDJSON, r"line 1: .*surrogate.*\(char 10\)"),
    "name that is no UTF-8": (
        b'{"\xff": 1}',
        Format.NDJSON,
        r"line 1: .*not UTF-8: the byte 0xff: .*\(char 2\)",
    ),
    "semicolons": (b"tail;x\nN1;2\n", Format.CSV, "no column tail, .*: it has 'tail;x'"),
    "latin-1": (b"tail,caf\xe9\nN1,2\n", Format.CSV, r"column 2 .*'caf\\udce9'"),
    "name twice": (b"tail,x,y,x\n", Format.CSV, "columns 2 and 4 .*'x'"),
    "no name": (b"tail,\n", Format.CSV, "column 2 of the file has no name"),
    "quote without end": (b'tail,"x\nN1,2\n', Format.CSV, "no header: line 2: unexpected end"),
    "not Parquet": (b"tail,x\nN1,2\n", Format.PARQUET, "damaged.*magic bytes"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_creating_a_pipe_names_the_place_of_a_malformed_row(name: str) -> None:
    content, form, words = MALFORMED[name]
    with pytest.raises(UserError, match=words) as refused:
        schema_of(content, form)
    assert refused.value.where["file"] == "x"


def test_the_place_of_a_damage_of_gzip_is_named() -> None:
    files = Files("shop", "x.gz", Format.NDJSON, ("tail",))
    whole = gzip.compress(b'{"tail": "N1"}\n')
    for content, words in (
        (whole + whole[:-9], "within its first .*ended before"),
        (whole[:-8] + bytes(8), "CRC check failed"),
        (b"PK" + whole, "within its first 2 bytes: Not a gzipped file"),
        (b"", "damaged: it is empty"),
    ):
        with pytest.raises(UserError, match=words):
            formats.schema(io.BytesIO(content), files, "x.gz")


def test_a_file_that_is_not_parquet_is_refused() -> None:
    with pytest.raises(UserError, match="damaged"):
        read(b"tail,x\nN1,2\n", Format.PARQUET)


class Zeros(io.RawIOBase):
    """Without an end."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def test_a_bomb_is_refused_and_a_sample_has_an_end() -> None:
    files = Files("shop", "x.gz", Format.NDJSON, ("tail",))
    bomb = gzip.compress(b"x" * (gzipped.INFLATED_FREELY + 2**21))
    with pytest.raises(UserError, match="200 times larger than its gzip"):
        list(formats.rows(io.BytesIO(bomb), files, {}, "x.gz"))
    assert formats.schema(io.BytesIO(bomb), files, "x.gz") is None
    assert formats.schema(Zeros(), files, "x") is None  # type: ignore[arg-type]
    with pytest.raises(UserError, match="more than 268,435,456 bytes"):
        formats.schema(Zeros(), Files("shop", "x", Format.PARQUET, ("tail",)), "x")  # type: ignore[arg-type]


def test_all_members_of_a_gzip_file_are_read() -> None:
    files = Files("shop", "x.gz", Format.NDJSON, ("tail",))
    packed = gzip.compress(b'{"tail": "N1"}\n') + gzip.compress(b'{"tail": "N2"}\n')
    assert len(list(formats.rows(io.BytesIO(packed), files, {}, "x.gz"))) == 2


@pytest.mark.parametrize("form", [Format.CSV, Format.NDJSON])
def test_a_text_file_is_utf_8_with_or_without_its_mark(form: Format) -> None:
    text = "tail,name\nN1,Zoë\n" if form is Format.CSV else '{"tail": "N1", "name": "Zoë"}\n'
    for encoding in ("utf-8", "utf-8-sig"):
        ((_, values, *_),) = read(text.encode(encoding), form, name={"type": "string"})
        assert json.loads(rows.as_text(values or {})) == {"tail": "N1", "name": "Zoë"}
    for encoding in ("utf-16", "utf-32"):
        for reader in (schema_of, read):
            with pytest.raises(UserError, match="not UTF-8: its first bytes"):
                reader(text.encode(encoding), form)


def test_an_answer_in_another_charset_is_refused_unless_it_is_parquet() -> None:
    headers = {"Content-Type": "text/csv; charset=ISO-8859-1"}
    with server(lambda *_: (200, headers, b"tail\nN1\n")) as address:
        folder = store(address)
        for form in Format:
            (listed,) = folder.listed(Files("shop", "x", form, ("tail",)))
            expected = (
                nullcontext() if form is Format.PARQUET else pytest.raises(UserError, match="'iso-8859-1'")
            )
            with expected, folder.opened(listed) as stream:
                assert stream.read() == b"tail\nN1\n"


def test_an_object_in_another_charset_is_refused_unless_it_is_parquet() -> None:
    headers = {"Content-Type": "text/csv; charset=ISO-8859-1", "ETag": '"1"'}
    with server(lambda *_: (200, headers, b"tail\nN1\n")) as address:
        bucket = store(f"s3://key:secret@bucket/?endpoint={address.rstrip('/')}&region=here")
        file = Listed("x", 8, '"1"', None)
        with bucket.opened(file) as stream:
            assert stream.read() == b"tail\nN1\n"
        with pytest.raises(UserError, match="'iso-8859-1'"), bucket.opened(replace(file, is_text=True)):
            pass


def test_the_work_on_pieces_is_not_a_pause_of_the_source() -> None:
    clock, read = Clock(), 0
    for piece in web.paced([b"x"] * 40, clock.monotonic):
        read += len(piece)
        clock.sleep(2 * web.PACE_S)
    assert read == 40


def test_an_answer_that_trickles_ends() -> None:
    seconds = itertools.count(0, web.PACE_S / 4)
    fast = web.paced([b"x" * web.PACE_BYTES] * 40, lambda: next(seconds))
    assert len(list(fast)) == 40
    slow = web.paced([b"x"] * 40, lambda: next(seconds))
    with pytest.raises(Transient, match="less than 65,536 bytes in 30 s"):
        list(slow)


def test_a_text_that_stands_for_many_rows_is_in_memory_once() -> None:
    rows = pa.table({"tail": [f"N{n}" for n in range(600)], "s": ["x" * 2**20] * 600})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    assert len(content) < 100_000
    before = pa.default_memory_pool().bytes_allocated()
    read_rows = formats.rows(io.BytesIO(content), Files("shop", "x", Format.PARQUET, ("tail",)), {}, "x")
    assert (next(read_rows).values or {})["s"] == "x" * 2**20
    assert pa.default_memory_pool().bytes_allocated() - before < 50 * 2**20

    listed = Listed("x", len(content), None, None)
    events = (load.event(MAKER, "x", row) for row in read_rows)
    with pytest.raises(UserError, match="2,000 times larger"):
        list(load.bounded(events, listed))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_texts_that_parquet_stores_as_differences_are_read(encoding: str) -> None:
    """As the second version of its pages has them, which Spark, Trino, DuckDB and others may write."""
    table = pa.table({"tail": [f"N{n}" for n in range(120)], "b": [b"\xff"] * 120, "s": ["x" * 2**20] * 120})
    sink = pa.BufferOutputStream()
    encodings = {"tail": "PLAIN", "b": encoding, "s": encoding}
    pq.write_table(table, sink, compression="zstd", use_dictionary=False, column_encoding=encodings)
    pool = pa.default_memory_pool()
    before, lines = pool.bytes_allocated(), 0
    files = Files("shop", "x", Format.PARQUET, ("tail",))
    for row in formats.rows(io.BytesIO(sink.getvalue().to_pybytes()), files, {}, "x"):
        assert row.values == {"tail": f"N{lines}", "b": "/w==", "s": "x" * 2**20}
        lines += 1
        assert encoding != "DELTA_BYTE_ARRAY" or pool.bytes_allocated() - before < 110 * 2**20
    assert lines == 120


def test_a_damaged_footer_of_parquet_is_an_error() -> None:
    content = b"PAR1" + b"\x00" * 20 + (20).to_bytes(4, "little") + b"PAR1"
    for reader in (schema_of, read):
        with pytest.raises(UserError, match="not a Parquet file") as caught:
            reader(content, Format.PARQUET)
        assert caught.value.where["file"] == "x"


def test_a_damaged_page_of_parquet_is_an_error() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"tail": [f"N{n}" for n in range(1_000)]}), sink, compression="zstd")
    content = bytearray(sink.getvalue().to_pybytes())
    content[40:200] = bytes(byte ^ 0xFF for byte in content[40:200])
    with pytest.raises(UserError, match="damaged") as caught:
        read(bytes(content), Format.PARQUET)
    assert caught.value.where["file"] == "x"


class Keys(encryption.KmsClient):  # type: ignore[misc] # pyarrow has no types
    """Keys that are no secrets."""

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return base64.b64encode(key_bytes)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_of_parquet_is_refused(plaintext_footer: bool) -> None:
    """Of a column that is encrypted below a readable footer, Arrow ended the process."""
    configuration = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["v"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), configuration)
    sink = pa.BufferOutputStream()
    table = pa.table({"tail": ["N1"], "v": ["x"]})
    pq.write_table(table, sink, encryption_properties=properties)
    with pytest.raises(UserError, match="decrypt"):
        read(sink.getvalue().to_pybytes(), Format.PARQUET)


def test_a_page_of_parquet_with_another_checksum_is_an_error() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"tail": ["N1", "N2", "N3"]})  # of N2 no statistics know
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_page_checksum=True)
    content = sink.getvalue().to_pybytes()
    place = content.index(b"N2")
    with pytest.raises(UserError, match="damaged"):
        read(content[:place] + b"N7" + content[place + 2 :], Format.PARQUET)


def test_a_value_of_ndjson_that_is_not_utf_8_is_seen_and_refused() -> None:
    content = b'{"tail": "N1", "n": "\xff\xfe"}\n{"tail": "N2", "n": "a"}\n'
    schema = schema_of(content)
    assert schema is not None
    assert schema["properties"]["n"] == {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("AccessDenied", 403, UserError),
        ("ExpiredToken", 400, UserError),
        ("InvalidObjectState", 403, UserError),
        ("AuthorizationHeaderMalformed", 400, UserError),
        ("SlowDown", 503, Transient),
        ("InternalError", 500, Transient),
        ("RequestTimeout", 400, Transient),
        ("NoSuchBucket", 404, NotFound),
        ("PreconditionFailed", 412, Conflict),
    ],
)
def test_only_temporary_errors_of_a_store_are_transient(
    code: str, status: int, error: type[Exception]
) -> None:
    assert type(refused(code, status)) is error


def test_the_schema_of_a_sample_fits_all_its_values() -> None:
    schema = schema_of(
        b'{"a": 1, "b": 1, "c": "x", "_id": "1", "e": 1e400}\n{"a": null, "b": 1.5, "c": 2, "d": [1]}\n[]'
    )
    assert schema is not None
    assert schema["properties"] == {
        "a": {"type": ["integer", "null"]},
        "b": {"type": ["number", "null"]},
        "c": {},
        "d": {},
        "e": {"type": ["number", "null"]},
    }


def test_a_certificate_of_an_unknown_authority_is_named_and_can_be_made_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_files = tls.make(Layout(tmp_path))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls_files.certificate, tls_files.key)
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"https://127.0.0.1:{server.server_address[1]}"

        def status() -> int:
            with web.client(web.site(place)) as client, web.answer(client, "HEAD", f"{place}/") as answer:
                return answer.status_code

        with pytest.raises(UserError, match="certificate of the source is not one that Pulse trusts"):
            status()
        monkeypatch.setenv("SSL_CERT_FILE", str(tls_files.authority))
        assert status() == 200
        server.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/prefix",
        "s3://key:secret@/prefix",
        "s3://key:secret@bucket?proxy=x",
        "file:///etc/passwd",
        "ftp://me:secret@host/",
        "https:///x",
        "https://me:secret@host/x?y=1",
        "https://me:secret@host:port/",
        "https://bearer:secret%0a@host/",
    ],
)
def test_an_invalid_address_is_refused_without_its_secret(address: str) -> None:
    with pytest.raises(UserError) as caught:
        store(address)
    assert "secret" not in str(caught.value).replace("key:secret@bucket/prefix", "")


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ("bearer:k%2Fy", "Bearer k/y"),
        (":k%2Fy", "Bearer k/y"),
        ("me:p%40ss", "Basic " + base64.b64encode(b"me:p@ss").decode()),
        ("", None),
    ],
)
def test_an_address_of_a_source_authorizes_as_that_of_a_sink(user: str, authorization: str | None) -> None:
    address = f"http://{user}@host:81/base/" if user else "http://host:81/base/"
    with web.client(web.site(address)) as client:
        of_source = client.build_request("GET", "http://host:81/")
    assert web.site(address).base == "http://host:81/base"
    _, auth = web.parsed(address)
    assert "k/y" not in repr(web.site(address))
    request = next(auth.sync_auth_flow(of_source)) if auth else of_source
    assert request.headers.get("Authorization") == authorization
