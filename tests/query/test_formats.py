"""Rows as JSON, CSV and Arrow: the same values in each, as far as the format has them."""

import csv
import io
from datetime import UTC, date, datetime

import orjson
import pyarrow as pa
import pytest

from pulse_pipelines.query.formats import to_arrow, to_csv, to_json, to_spreadsheet

AT = datetime(2026, 11, 19, 10, 0, 0, 250, UTC)
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("born", pa.date32()),
        ("big", pa.int64()),
        ("amount", pa.float64()),
        ("active", pa.bool_()),
        ("text", pa.string()),
        ("context", pa.string()),
        ("address", pa.struct([("zip", pa.string())])),
        ("tags", pa.list_(pa.string())),
    ]
)
ROWS = pa.Table.from_pylist(
    [
        {
            "at": AT,
            "born": date(1, 2, 3),
            "big": 2**63 - 1,
            "amount": float("nan"),
            "active": True,
            "text": 'a "b",\r\nc é 😀',
            "context": '{"ip":"::1"}',
            "address": {"zip": "1,2"},
            "tags": ["x", None],
        },
        {"at": AT.replace(microsecond=0, year=1), "amount": 0.1, "active": False, "text": "", "tags": []},
        {"text": "=1+1", "amount": 1e300, "big": -(2**63)},
    ],
    schema=SCHEMA,
)


def test_json_has_an_object_per_row() -> None:
    one, two, three = orjson.loads(to_json(ROWS))["rows"]
    assert one == {
        "at": "2026-11-19T10:00:00.000250Z",
        "born": "0001-02-03",
        "big": 2**63 - 1,
        "amount": None,
        "active": True,
        "text": 'a "b",\r\nc é 😀',
        "context": '{"ip":"::1"}',
        "address": {"zip": "1,2"},
        "tags": ["x", None],
    }
    assert (two["at"], two["amount"], two["text"], two["tags"]) == ("0001-11-19T10:00:00Z", 0.1, "", [])
    assert (three["at"], three["amount"], three["big"]) == (None, 1e300, -(2**63))


def test_csv_has_a_line_per_row() -> None:
    content = to_csv(ROWS).decode()
    assert content.endswith("\r\n")
    header, one, two, three = csv.reader(io.StringIO(content, newline=""), strict=True)
    assert header == SCHEMA.names
    assert one == [
        "2026-11-19T10:00:00.000250Z",
        "0001-02-03",
        "9223372036854775807",
        "NaN",
        "true",
        'a "b",\r\nc é 😀',
        '{"ip":"::1"}',
        '{"zip":"1,2"}',
        '["x",null]',
    ]
    assert two == ["0001-11-19T10:00:00Z", "", "", "0.1", "false", "", "", "", "[]"]
    assert three[2:6] == ["-9223372036854775808", "1e+300", "", "=1+1"]
    assert ',"",' in content.splitlines()[-2], "an empty string differs from null"


NOT_FINITE = pa.table({"v": [float("nan"), float("inf"), float("-inf"), None, 0.0]})
ODD_TEXTS = [
    "=1",
    "'=1",
    "''=1",
    "'",
    "+1",
    "'+1",
    "-infinity",
    "-1 day",
    "@x",
    "\t",
    "",
    "a'",
    "null",
    "NaN",
    " x ",
]


def test_csv_tells_infinities_nan_and_null_apart() -> None:
    assert to_csv(NOT_FINITE) == b"v\r\nNaN\r\nInfinity\r\n-Infinity\r\n\r\n0.0\r\n"
    assert [row["v"] for row in orjson.loads(to_json(NOT_FINITE))["rows"]] == [None, None, None, None, 0.0]


def test_csv_has_texts_as_they_are() -> None:
    content = to_csv(pa.table({"-name": ODD_TEXTS})).decode()
    header, *rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    assert (header, [cell for (cell,) in rows]) == (["-name"], ODD_TEXTS)


def test_csv_for_spreadsheets_gives_texts_back() -> None:
    content = to_spreadsheet(pa.table({"v": ODD_TEXTS})).decode()
    _, *rows = csv.reader(io.StringIO(content, newline=""), strict=True)
    assert [cell.removeprefix("'") for (cell,) in rows] == ODD_TEXTS
    assert len({cell for (cell,) in rows}) == len(ODD_TEXTS)


@pytest.mark.parametrize("begins", "=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - as a spreadsheet takes them
def test_csv_for_spreadsheets_holds_no_formulas(begins: str) -> None:
    written = [f"{begins}SUM(A1:A9)", f'{begins}cmd|"/C calc"!A0', "-12.5", "+49 30", "-", "a=b"]
    column = pa.table({f"{begins}name": pa.array(written), "number": pa.array([-1, -2, -3, -4, -5, -6])})
    header, *rows = csv.reader(io.StringIO(to_spreadsheet(column).decode(), newline=""), strict=True)
    assert header == [f"'{begins}name", "number"]
    assert [text for text, _ in rows] == [f"'{written[0]}", f"'{written[1]}", "-12.5", "'+49 30", "'-", "a=b"]
    assert [number for _, number in rows] == ["-1", "-2", "-3", "-4", "-5", "-6"]


def test_arrow_has_the_exact_values() -> None:
    assert pa.ipc.open_stream(to_arrow(ROWS)).read_all().to_pydict().keys() == ROWS.to_pydict().keys()
    back = pa.ipc.open_stream(to_arrow(ROWS)).read_all()
    assert back.schema == SCHEMA
    assert back.drop(["amount"]) == ROWS.drop(["amount"])
    assert str(back.column("amount")) == str(ROWS.column("amount"))


@pytest.mark.parametrize("rows", [SCHEMA.empty_table(), ROWS.slice(1, 0)])
def test_no_rows_are_an_answer_too(rows: pa.Table) -> None:
    assert orjson.loads(to_json(rows)) == {"rows": []}
    assert to_csv(rows).decode() == ",".join(SCHEMA.names) + "\r\n"
    assert pa.ipc.open_stream(to_arrow(rows)).read_all().num_rows == 0
