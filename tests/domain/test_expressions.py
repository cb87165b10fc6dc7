"""Expressions: the same value in Python and in SQL, whatever the row; what is none is refused with words."""

from datetime import UTC, date, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from support.examples import times

from pulse_pipelines.domain.expressions.compiler import expression, subset
from pulse_pipelines.domain.schemas.columns import Column, FieldType, Kind
from pulse_resources.errors import UserError

ADDRESS = FieldType(Kind.STRUCT, (("city", FieldType(Kind.STRING)), ("since", FieldType(Kind.DATE))))
COLUMNS = (
    Column("name", "name", FieldType(Kind.STRING)),
    Column("id", "data_id", FieldType(Kind.STRING)),
    Column("people", "people", FieldType(Kind.LONG)),
    Column("area", "area", FieldType(Kind.DOUBLE)),
    Column("free", "free", FieldType(Kind.BOOLEAN)),
    Column("seen", "seen", FieldType(Kind.TIMESTAMP)),
    Column("born", "born", FieldType(Kind.DATE)),
    Column("address", "address", ADDRESS),
    Column("tags", "tags", FieldType(Kind.LIST, item=FieldType(Kind.STRING))),
)
DATES = pa.struct([("city", pa.string()), ("since", pa.date32())])
SCHEMA = pa.schema(
    [("id", pa.string()), ("name", pa.string()), ("data_id", pa.string()), ("people", pa.int64()),
     ("area", pa.float64()), ("free", pa.bool_()), ("seen", pa.timestamp("us", tz="UTC")),
     ("born", pa.date32()), ("address", DATES)]
)  # fmt: skip
TEXTS = st.one_of(st.sampled_from(["", "a", "ÄÖ", "İΣς", "ß'", "%", "a\0", "\0"]), st.text(max_size=4))
LONGS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
DOUBLES = st.one_of(st.sampled_from([0.0, -0.0, 1.0, float("nan")]), st.floats())
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), of)


ROWS = st.fixed_dictionaries(
    {"id": TEXTS, "name": maybe(TEXTS), "data_id": maybe(TEXTS), "people": maybe(LONGS),
     "area": maybe(DOUBLES), "free": maybe(st.booleans()), "seen": maybe(MOMENTS), "born": maybe(st.dates()),
     "address": maybe(st.fixed_dictionaries({"city": maybe(TEXTS), "since": maybe(st.dates())}))}
)  # fmt: skip


def quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def expressions(kind: Kind, depth: int) -> st.SearchStrategy[str]:
    """Texts of expressions of a kind."""

    def of(kind: Kind) -> st.SearchStrategy[str]:
        return expressions(kind, depth - 1)

    leaves = {
        Kind.STRING: st.one_of(st.sampled_from(["name", "_id", "id", "address.city"]), TEXTS.map(quoted)),
        Kind.LONG: st.one_of(st.just("people"), LONGS.map(str)),
        Kind.DOUBLE: st.one_of(st.just("area"), st.floats(-1e300, 1e300).map(lambda n: f"{n:e}")),
        Kind.BOOLEAN: st.sampled_from(["free", "true", "false"]),
        Kind.TIMESTAMP: st.just("seen"),
        Kind.DATE: st.sampled_from(["born", "address.since"]),
    }
    if not depth:
        return leaves[kind]
    calls: list[st.SearchStrategy[str]] = [st.builds("coalesce({}, {})".format, of(kind), of(kind))]
    at = st.sampled_from([Kind.TIMESTAMP, Kind.DATE]).flatmap(of)
    if kind is Kind.STRING:
        parts = st.sampled_from([Kind.STRING, Kind.LONG, Kind.BOOLEAN, Kind.DATE]).flatmap(of)
        calls += [st.builds("concat({}, {})".format, parts, parts), st.builds("lower({})".format, of(kind))]
    if kind is Kind.LONG:
        calls.append(st.builds("{}({})".format, st.sampled_from(["year", "month", "day"]), at))
    if kind is Kind.DATE:
        calls.append(st.builds("date({})".format, at))
    if kind is Kind.BOOLEAN:
        signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
        pairs = st.sampled_from(list(leaves)).flatmap(lambda operand: st.tuples(of(operand), of(operand)))
        pairs |= st.tuples(st.just("area"), st.integers(-(2**53), 2**53).map(str))
        pairs |= st.tuples(st.just("born"), st.dates().map(lambda day: f"'{day}'"))
        pairs |= st.tuples(MOMENTS.map(lambda at: f"'{at.isoformat()}'"), st.just("seen"))
        calls.append(st.builds(lambda two, sign: f"({two[0]} {sign} {two[1]})", pairs, signs))
    return st.one_of(leaves[kind], *calls)


KEYS = st.sampled_from([Kind.STRING, Kind.LONG, Kind.BOOLEAN, Kind.DATE])


@times(1.2)
@given(text=KEYS.flatmap(lambda kind: expressions(kind, 3)), rows=st.lists(ROWS, min_size=1, max_size=5))
def test_python_and_sql_agree(
    engine: duckdb.DuckDBPyConnection, text: str, rows: list[dict[str, Any]]
) -> None:
    parsed = expression(text, COLUMNS)
    assert expression(parsed.text, COLUMNS).text == parsed.text
    table = pa.Table.from_pylist(rows, SCHEMA)
    engine.register("rows", table)
    by_sql = [value for (value,) in engine.execute(f"SELECT {parsed.sql} FROM rows").fetchall()]
    read = table.select(sorted(parsed.columns)).to_pylist() if parsed.columns else rows
    assert [parsed.of(row) for row in read] == by_sql
    for value in {*by_sql} - {None}:
        within = subset(f"{parsed.text}={value}", COLUMNS).sql
        members = engine.execute(f"SELECT coalesce({within}, false) FROM rows").fetchall()
        assert [member for (member,) in members] == [member == value for member in by_sql]


@pytest.fixture(scope="module")
def engine() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nam", "Did you mean name?"),
        ("address", "is not one value"),
        ("tags", "is not one value"),
        ("address.citi", "Did you mean city?"),
        ("area", "hardly two are equal"),
        ("seen", "hardly two are equal"),
        ("concat(area, name)", "concat takes a string"),
        ("lower(people)", "lower takes a string"),
        ("lower(name, name)", "takes 1, and has 2"),
        ("coalesce(name, people)", "coalesce takes a string"),
        ("(people = name)", "compares a long with a string"),
        ("(born = 'today')", "is not a date"),
        ("(seen < 'now')", "is not a timestamp"),
        ("(people < 99999999999999999999)", "beyond 64 bits"),
        ("(area < 0.10000000000000000001)", "0.10000000000000000001 would be compared as 0.1"),
        ("(area < 1e400)", "1e400 would be compared as inf"),
        ("(area = 9007199254740993)", "9007199254740993 would be compared as 9007199254740992.0"),
        ("(9223372036854775807 > area)", "9223372036854775807 would be compared as 9.2"),
        ("(seen = '2026-11-25T10:00:00.1234567Z')", "has more than microseconds"),
        ("people = 1", "an end was expected"),
        ("upper(name)", "an end was expected"),
        ("(people 5)", "a comparison was expected"),
        ("lower(", "was expected at ''"),
        ("'a", "was expected"),
        ("lower(" * 40 + "name" + ")" * 40, "32 parts"),
        ("'" + "x" * 500 + "'", "500 characters"),
        ("name; DROP TABLE rows", "an end was expected"),
    ],
)
def test_an_invalid_expression_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        expression(text, COLUMNS)
    assert reason in str(refused.value)


@pytest.mark.parametrize("value", ["05", "+5", "-0", "true", "99999999999999999999", ""])
def test_a_value_that_no_entity_can_have_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="is not a value of people"):
        subset(f"people={value}", COLUMNS)


def test_all_that_follows_the_sign_is_the_value() -> None:
    assert subset("concat(name, '=')=a = b'", COLUMNS).value == "a = b'"
    assert subset("(people >= 1000) =true", COLUMNS).value == "true"
    assert subset("born=2026-11-25", COLUMNS).expression.of({"born": date(2026, 11, 25)}) == "2026-11-25"
