"""Values of a result in every form: exact, or an error that names the column; of every type of DuckDB."""

import io
import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sql import ask, processes

from pulse_pipelines.query.formats import ARROW, CSV, JSON, PARQUET
from pulse_pipelines.sql.processes import Processes
from pulse_resources.errors import UserError

NULLS = """
SELECT * FROM (VALUES
    (true, [true, NULL], {'a': true, 'b': [1::HUGEINT, NULL]}, MAP {'k': true}, [true, NULL]::BOOLEAN[2]),
    (NULL, NULL, NULL, NULL, NULL),
    (false, [], {'a': NULL, 'b': NULL}, MAP {}, [NULL, false])) AS v(flag, list, struct, map, pair)
"""
NULL_ROWS = [
    {"flag": True, "list": [True, None], "struct": {"a": True, "b": [1, None]}},
    {"flag": None, "list": None, "struct": None},
    {"flag": False, "list": [], "struct": {"a": None, "b": None}},
]
IN_JSON = {
    "date '10000-01-01'": "10000-01-01",
    "'0044-01-01 (BC)'::DATE": "0044-01-01 (BC)",
    "'infinity'::TIMESTAMPTZ": "infinity",
    "TIMESTAMP '99999-01-01 10:00:00'": "99999-01-01 10:00:00",
    "[date '2020-02-02', NULL, '-infinity']": ["2020-02-02", None, "-infinity"],
    "MAP {'a': date '10000-01-01'}": [["a", "10000-01-01"]],
    "TIMESTAMPTZ '2020-02-02 10:00:00+02'": "2020-02-02T08:00:00Z",
    "TIMESTAMP_NS '2020-02-02 10:00:00.123456789'": "2020-02-02T10:00:00.123456789",
    "TIMESTAMP_NS '2020-02-02 10:00:00'": "2020-02-02T10:00:00",
    "'infinity'::TIMESTAMP_NS": "infinity",
    "'24:00:00'::TIME": "24:00:00",
    "'12:00:00.123456789'::TIME_NS": "12:00:00.123456789",
    "'12:00:00+02'::TIMETZ": "12:00:00+02",
    "INTERVAL '14 months -2 days 3.5 seconds'": "1 year 2 months -2 days 00:00:03.5",
    "row(1, row(true, 'x'))": [1, [True, "x"]],
    "union_value(k := INTERVAL 1 DAY)": "1 day",
    "340282366920938463463374607431768211455::UHUGEINT": 2**128 - 1,
    "'-170141183460469231731687303715884105727'::HUGEINT": 1 - 2**127,
    "'101'::BIT": "101",
    "uuid '33c892a3-239e-4f80-8f0a-284c54a1ace3'": "33c892a3-239e-4f80-8f0a-284c54a1ace3",
    "'a'::ENUM ('a', 'b')": "a",
}
"""Expressions, and what they are in JSON."""
NOT_IN_PARQUET = (
    "INTERVAL 1 MONTH",
    "[INTERVAL 1 MONTH]",
    "union_value(k := 1)",
    "{'a': union_value(k := 1)}",
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Processes]:
    with processes() as pool:
        yield pool


def test_every_type_is_in_json_and_csv(workers: Processes) -> None:
    columns = ", ".join(f"{expression} AS c{n}" for n, expression in enumerate(IN_JSON))
    sql = f"SELECT {columns}"
    (row,) = json.loads(ask(workers, sql))["rows"]
    assert dict(zip(IN_JSON, row.values(), strict=True)) == IN_JSON
    line = ask(workers, sql, media_type=CSV).decode().splitlines()[1]
    assert line.startswith("10000-01-01,0044-01-01 (BC),infinity,99999-01-01 10:00:00,")
    assert "1 year 2 months -2 days 00:00:03.5" in line


def test_duckdb_reads_a_written_text_as_the_same_value(workers: Processes) -> None:
    """Also where JSON has no form of its own for it: DuckDB's is one that DuckDB reads."""
    for expression, written in IN_JSON.items():
        if isinstance(written, str):
            sql = f"SELECT x = '{written}'::VARCHAR::{{}} FROM (SELECT {expression} AS x)"
            kind = duckdb.sql(f"SELECT typeof({expression})").fetchall()[0][0]
            if kind.startswith(("UNION", "ENUM")):
                continue
            assert duckdb.sql(f"SET TimeZone = 'UTC'; {sql.format(kind)}").fetchall() == [(True,)], expression


def test_booleans_and_sums_keep_their_types_at_any_depth(workers: Processes) -> None:
    streamed = pa.ipc.open_stream(ask(workers, NULLS, media_type=ARROW)).read_all()
    stored = pq.read_table(io.BytesIO(ask(workers, NULLS, media_type=PARQUET)))
    for result in (streamed, stored):
        result.validate(full=True)
        assert result.schema.field("flag").type == pa.bool_()
        assert result.schema.field("list").type.value_type == pa.bool_()
        assert result.schema.field("struct").type.field("a").type == pa.bool_()
        assert result.schema.field("struct").type.field("b").type.value_type == pa.decimal128(38, 0)
        assert result.schema.field("map").type.item_type == pa.bool_()
        assert result.drop(["map", "pair"]).to_pylist() == NULL_ROWS
        assert result.column("map").to_pylist() == [[("k", True)], None, []]
        assert result.column("pair").to_pylist() == [[True, None], None, [None, False]]
    answer = json.loads(ask(workers, NULLS))
    assert answer["columns"][0] == {"name": "flag", "type": "bool"}
    maps = [{"map": [["k", True]], "pair": [True, None]}, {"map": None, "pair": None}]
    maps.append({"map": [], "pair": [None, False]})
    assert answer["rows"] == [row | more for row, more in zip(NULL_ROWS, maps, strict=True)]


@pytest.mark.parametrize("expression", NOT_IN_PARQUET)
def test_a_type_that_parquet_lacks_is_named_with_its_column(workers: Processes, expression: str) -> None:
    with pytest.raises(UserError, match=r"the column 'when', of type .*Parquet has no such type") as refused:
        ask(workers, f'SELECT {expression} AS "when"', media_type=PARQUET)
    assert "CAST" in str(refused.value)
    ask(workers, f'SELECT ({expression})::VARCHAR AS "when"', media_type=PARQUET)


@pytest.mark.parametrize("media_type", [ARROW, PARQUET])
def test_a_number_of_39_digits_is_named_with_its_column(workers: Processes, media_type: str) -> None:
    """HUGEINT is a decimal of 38 digits there: of more, readers make another number, or none."""
    for expression in (f"{2**127 - 1}", f"{{'a': [NULL, -{10**38}]}}"):
        with pytest.raises(UserError, match=r"the column 'sum', of type .* a number of 39 digits") as refused:
            ask(workers, f'SELECT {expression} AS "sum"', media_type=media_type)
        assert "CAST" in str(refused.value)
        assert len(json.loads(ask(workers, f'SELECT {expression} AS "sum"'))["rows"]) == 1
    for expression in (f"{'9' * 38}::HUGEINT", "340282366920938463463374607431768211455::UHUGEINT", "sum(1)"):
        assert ask(workers, f'SELECT {expression} AS "sum"', media_type=media_type)


@pytest.mark.parametrize("media_type", [ARROW, PARQUET])
def test_a_time_that_arrow_lacks_is_named_with_its_column(workers: Processes, media_type: str) -> None:
    """Readers take the infinite ones for days in distant years, and 24:00 for the midnight before."""
    for value, why in (
        ("'infinity'::DATE", "infinite"),
        ("'-infinity'::TIMESTAMP", "infinite"),
        ("'infinity'::TIMESTAMPTZ", "infinite"),
        ("'-infinity'::TIMESTAMP_MS", "infinite"),
        ("[NULL, {'a': MAP {'k': 'infinity'::TIMESTAMP_NS}}]", "infinite"),
        ("'24:00:00'::TIME", "24:00:00"),
        ("{'a': ['24:00:00'::TIME]}", "24:00:00"),
    ):
        with pytest.raises(UserError, match=rf"the column 'until', of type .*: .*{why}") as refused:
            ask(workers, f'SELECT {value} AS "until" FROM range(3)', media_type=media_type)
        assert "CAST" in str(refused.value)
    beyond = """SELECT DATE '200000-01-01' AS day, ['23:59:59.999999'::TIME] AS time,
        TIMESTAMP '290000-01-01 00:00:00' AS moment, NULL::DATE AS none, 'infinity'::DATE::VARCHAR AS text"""
    assert ask(workers, beyond, media_type=media_type)


@pytest.mark.parametrize("media_type", [JSON, CSV, ARROW])
def test_an_interval_of_more_hours_than_arrow_holds_is_named_with_its_column(
    workers: Processes, media_type: str
) -> None:
    """Arrow has its time in nanoseconds, of 292 years: DuckDB makes another interval of more, silently."""
    summed = "SELECT to_hours(sum(23)::INTEGER) AS waited FROM range(120_000)"
    nested = "SELECT {'a': [MAP {'k': INTERVAL '-3000000 hours'}]} AS waited, 1 AS \"a\", 2 AS \"a_1\""
    for sql in (summed, nested, f"WITH w AS ({summed}) SELECT NULL AS n, * FROM w; -- the end"):
        with pytest.raises(UserError, match=r"the column 'waited', of type .*: .* 292 years") as refused:
            ask(workers, sql, media_type=media_type)
        assert "CAST" in str(refused.value)
    text = f"SELECT CAST(waited AS VARCHAR) AS waited FROM ({summed})"
    assert json.loads(ask(workers, text))["rows"] == [{"waited": "2760000:00:00"}]


def test_intervals_that_arrow_holds_are_as_they_were(workers: Processes) -> None:
    sql = """
        SELECT CASE WHEN n % 7 = 3 THEN NULL ELSE to_hours(n * 2500) END AS waited, n AS "N",
            {'i': [to_years(n::INTEGER), NULL], 'u': union_value(i := to_days(-n::INTEGER))} AS "n of"
        FROM (SELECT range AS n FROM range(1_000)) ORDER BY n DESC"""
    rows = json.loads(ask(workers, sql))["rows"]
    assert [row["N"] for row in rows] == list(range(999, -1, -1))
    assert rows[0]["waited"] == "2497500:00:00"
    assert rows[-2] == {"waited": "2500:00:00", "N": 1, "n of": {"i": ["1 year", None], "u": "-1 day"}}
    assert rows[-4]["waited"] is None
    twice = "SELECT INTERVAL 1 DAY AS i, 1 AS i"
    with pytest.raises(UserError, match="two columns of the result are called 'i'"):
        ask(workers, twice)


@pytest.mark.parametrize("expression", ["1::VARIANT", "[" * 100 + "1" + "]" * 100])
def test_a_value_without_a_json_form_is_not_reported_as_lack_of_memory(
    workers: Processes, expression: str
) -> None:
    with pytest.raises(UserError, match="the result cannot be written as application/json") as refused:
        ask(workers, f"SELECT {expression} AS x")
    assert "memory" not in str(refused.value)


def test_numbers_that_duckdb_changes_are_those_of_the_page(workers: Processes) -> None:
    """The page on SQL says of each how to read it exactly."""
    price = """'{"a":1,"price":883406386745030.3}'"""
    (row,) = json.loads(
        ask(
            workers,
            f"""SELECT {price} ->> '$.price' AS json,
                regexp_extract({price}, '"price":([-+.0-9eE]+)', 1) AS text,
                x = 0.9366088668340495 AS decimal, x = 0.9366088668340495e0 AS double
            FROM (SELECT '0.9366088668340495'::DOUBLE AS x)""",
        )
    )["rows"]
    assert row == {"json": "883406386745030.2", "text": "883406386745030.3", "decimal": False, "double": True}


def test_rows_of_many_batches_and_odd_values_between_usual_ones(workers: Processes) -> None:
    sql = "SELECT CASE WHEN range % 300 = 7 THEN NULL ELSE DATE '9999-12-30' + range::INTEGER END AS d"
    rows: list[Any] = json.loads(ask(workers, f"{sql} FROM range(900)"))["rows"]
    assert [row["d"] for row in rows[:9]] == [
        *("9999-12-30", "9999-12-31", "10000-01-01", "10000-01-02", "10000-01-03", "10000-01-04"),
        *("10000-01-05", None, "10000-01-07"),
    ]
    assert len(rows) == 900
