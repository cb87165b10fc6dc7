"""Faster functions of time: for every value the same value and type as without them."""

import json
from collections.abc import Iterator, Sequence

import duckdb
import pytest
from hypothesis import given, settings, strategies as st
from support.sql import ask, processes

from pulse_pipelines.sql import allowed, utc
from pulse_pipelines.sql.gate import Gate
from pulse_pipelines.sql.processes import Processes
from pulse_resources.errors import UserError

GATE = Gate()
OF_ONE = [
    name for names, types in utc.FAMILIES.items() if "," not in types.split()[0] for name in names.split()
]
PARTS = (
    "century decade dow doy epoch hour isodow isoyear julian millisecond second timezone week year yearweek"
)
UNITS = (
    "microsecond millisecond second minute hour day week month quarter year isoyear decade century millennium"
)
WIDTHS = ("7 microseconds", "90 minutes", "1 day", "1 week", "1 month", "5 months", "3 years", "-1 day")
SHIFTS = ("1 day", "-1 month", "13 months 3 days 4.5 seconds", "-100 years", "25 hours", "200000 years")
FORMATS = ("%Y-%m", "%a %b %-d %H:%M:%S.%f", "%j %U %W %u %w %G-%V %y %I %p", "%c|%x|%X", "%z %g", "%Z")
EXPRESSIONS = [
    *(f"{name}(t)" for name in OF_ONE),
    *(f"date_part('{part}', t)" for part in PARTS.split()),
    *(f"extract({part} FROM t)" for part in ("year", "dow", "epoch")),
    "date_part(['year', 'hour'], t)",
    *(f"date_trunc('{unit}', t)" for unit in UNITS.split()),
    *(f"date_diff('{unit}', t, o)" for unit in UNITS.split()),
    "date_sub('hour', t, o)",
    *(f"time_bucket(INTERVAL '{width}', t)" for width in WIDTHS),
    *(f"time_bucket(INTERVAL '{width}', t, INTERVAL '5 hours')" for width in WIDTHS),
    *(f"time_bucket(INTERVAL '{width}', t, TIMESTAMPTZ '2021-03-07 05:00:00Z')" for width in WIDTHS),
    "time_bucket(INTERVAL 1 DAY, t, 'Europe/Berlin')",
    *(f"t {sign} INTERVAL '{shift}'" for sign in "+-" for shift in SHIFTS),
    *(f"INTERVAL '{shift}' + t" for shift in SHIFTS),
    "t - INTERVAL 1 MONTH - INTERVAL 3 DAY",
    "t - (INTERVAL 1 MONTH + INTERVAL 3 DAY)",
    *(f"strftime(t, '{written}')" for written in FORMATS),
    "strftime('%Y', t)",
    *(f"t::{kind}" for kind in ("DATE", "TIMESTAMP", "VARCHAR", "TIMESTAMPTZ", "TIMESTAMP_NS", "TIME")),
    *(f"TRY_CAST(t AS {kind})" for kind in ("DATE", "VARCHAR")),
    *(f"t AT TIME ZONE '{zone}'" for zone in ("UTC", "utc", "Europe/Berlin")),
    "(t AT TIME ZONE 'UTC')::DATE",
    "age(t, o)",
    "t - o",
    "(t - o) - (o - t)",
    "t::DATE - o::DATE",
    "year(date_trunc('week', t + INTERVAL 1 DAY)::DATE)",
    "date_trunc('day', date_trunc('month', (t + INTERVAL 1 DAY) - INTERVAL 2 DAY) + INTERVAL 3 HOUR)",
    "hour(coalesce(t, o))",
    "CASE WHEN year(t) = 2024 THEN t::DATE END",
    "list_transform([t, o], lambda x: date_trunc('day', x))",
]
NEVER = (
    "13 months",
    "t::TIME",
    "epoch",
    "date_sub",
    "'%Z'",
    "TRY_CAST",
    "'utc'",
    "Berlin",
    "TIMESTAMPTZ)",
    "['year'",
    "strftime('%Y'",
)
"""What is in expressions that are left as they are: the plain form has other values."""
MOMENTS = (
    "NULL",
    "infinity",
    "-infinity",
    "0001-01-01 00:00:00+00",
    "0001-01-01 00:00:00.000001+00",
    "0044-03-15 (BC) 10:11:12.5+00",
    "1582-10-05 00:00:00+00",
    "1582-10-14 23:59:59.999999+00",
    "1849-03-01 00:00:00+00",
    "1969-12-31 23:59:59.999999+00",
    "1970-01-01 00:00:00+00",
    "2000-02-29 12:00:00+00",
    "2024-12-30 00:00:00.1+00",
    "2026-11-28 05:00:00+00",
    "9999-12-31 23:59:59.999999+00",
    "10000-01-01 00:00:00+00",
)
INSTANTS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
"""Microseconds since 1970, of the years 1 to 9999."""
OTHER_TYPES = (
    "NULL",
    "NULL::INTEGER",
    "3",
    "'2024-01-01'",
    "'2024-01-01'::VARCHAR",
    "DATE '2024-01-01'",
    "TIMESTAMP '2024-01-01 03:04:05.6'",
    "TIMESTAMP_NS '2024-01-01'",
    "TIME '10:11:12'",
    "'10:11:12+02'::TIMETZ",
    "INTERVAL '1 month 3 days'",
    "1.5",
    "2::HUGEINT",
    "[1]",
    "'3'::JSON",
    "'a'::ENUM ('a')",
)


def connected() -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:", config={"threads": 1})
    database.execute("SET TimeZone = 'UTC'")
    utc.create_macros(database)
    return database


DATABASE = connected()


@pytest.fixture(scope="module")
def workers() -> Iterator[Processes]:
    with processes() as running:
        yield running


def faster(sql: str) -> utc.Rewritten:
    rewritten = GATE.check(sql).faster
    assert rewritten is not None
    return rewritten


def answer(sql: str) -> object:
    """The type and values of a column, or nothing if the query fails."""
    try:
        ((_, kind, *_),) = DATABASE.execute(f"DESCRIBE {sql}").fetchall()
        return kind, DATABASE.execute(f"SELECT v::VARCHAR FROM ({sql}) AS r(v)").fetchall()
    except duckdb.Error:
        return None


def fill(moments: Sequence[str]) -> None:
    other_moments = [*moments[1:], *moments[:1]]
    values = ", ".join(f"({moment}, {other})" for moment, other in zip(moments, other_moments, strict=True))
    DATABASE.execute(f"CREATE OR REPLACE TABLE moments AS FROM (VALUES {values}) AS v(t, o)")


def differs(expression: str) -> bool:
    """Whether the faster form succeeds, and with another answer; what fails is run as it was written."""
    query = GATE.check(f"SELECT {expression} AS v FROM moments")
    if query.faster is None:
        return False
    quick = answer(query.faster.text)
    return quick is not None and quick != answer(query.text)


@pytest.mark.sample(6)
@pytest.mark.parametrize("moment", MOMENTS)
def test_odd_moments_have_the_same_value_and_type(moment: str) -> None:
    written = "NULL" if moment == "NULL" else f"'{moment}'"
    fill([f"{written}::TIMESTAMPTZ", "TIMESTAMPTZ '2024-02-29 12:00:00.5Z'"])
    assert [expression for expression in EXPRESSIONS if differs(expression)] == []


def test_all_expressions_but_a_few_become_faster() -> None:
    fill(["TIMESTAMPTZ '2024-02-29 12:00:00.5Z'"])
    for expression in EXPRESSIONS:
        query = GATE.check(f"SELECT {expression} AS v FROM moments")
        if query.faster is not None:
            assert answer(query.faster.text) == answer(query.text), expression
        else:
            assert any(part in expression for part in NEVER) or "NS" in expression, expression


def assert_same() -> None:
    """Compare all expressions at once, without those that fail for any moment."""
    failing = ("200000", "-1 day', t", "t::TIME")
    columns = [text for text in EXPRESSIONS if not any(part in text for part in failing)]
    sql = (
        "SELECT "
        + ", ".join(f"({text})::VARCHAR AS v{n}" for n, text in enumerate(columns))
        + " FROM moments"
    )
    quick, usual = (DATABASE.execute(text).fetchall() for text in (faster(sql).text, sql))
    different = [
        (text, a, b)
        for rows in zip(quick, usual, strict=True)
        for text, a, b in zip(columns, *rows, strict=True)
        if a != b
    ]
    assert different == []


@settings(max_examples=4)  # to bind so many macros takes a second
@given(st.lists(INSTANTS, min_size=50, max_size=50))
def test_any_moment_has_the_same_value(instants: list[int]) -> None:
    fill([f"make_timestamptz({instant})" for instant in instants])
    assert_same()


@settings(max_examples=4)
@given(st.lists(st.integers(-719_162, 2_932_896), min_size=50, max_size=50))
def test_any_day_has_the_same_value(days: list[int]) -> None:
    fill([f"make_timestamptz({day * 86_400_000_000})" for day in days])
    assert_same()


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_other_types_have_the_same_value_and_type(kind: str) -> None:
    fill([kind])
    assert [expression for expression in EXPRESSIONS if differs(expression)] == []


def test_macros_have_the_signatures_of_duckdb() -> None:
    """So that one is chosen as the function would be, for every type and number of arguments."""
    spelled = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ", "TIME WITH TIME ZONE": "TIMETZ"}
    for names, signatures in utc.FAMILIES.items():
        for name in set(names.split()) - {"strftime"}:
            every = DATABASE.execute(
                "SELECT parameter_types FROM duckdb_functions() WHERE function_name = ?"
                " AND database_name = 'system' AND function_type = 'scalar'",
                [name],
            ).fetchall()
            own = {tuple(signature.split(",")) for signature in signatures.split()}
            theirs = {tuple(spelled.get(kind, kind) for kind in types) for (types,) in every}
            assert own == {
                types
                for types in theirs
                if len(types) in set(map(len, own))
                and types[0] != "VARCHAR[]"
                and (name not in "+-" or "INTERVAL" in types)
            }, name


def test_no_caller_may_name_a_macro_and_volatile_functions_are_called_once() -> None:
    assert not [name for name in allowed.FUNCTIONS if name.startswith(utc.PREFIX)]
    with pytest.raises(UserError, match="utc_date"):
        GATE.check("SELECT utc_date(t) FROM moments")
    volatile = DATABASE.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability LIKE 'VOLATILE%'"
    ).fetchall()
    assert {name for (name,) in volatile} & allowed.FUNCTIONS == utc.VOLATILE
    assert GATE.check("SELECT year(t + to_days(Random()::INT)) FROM moments").faster is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT year(now()), year(TIMESTAMPTZ '2024-01-01 00:00:00Z')",  # they are constants already
        "SELECT * FROM moments WHERE date_trunc('day', t) >= now() - INTERVAL 1 DAY",
        "SELECT * FROM moments WHERE date_trunc('day', t) BETWEEN '2024-01-01' AND '2024-02-01'",
        "SELECT * FROM (SELECT t::DATE FROM moments)",  # a name that queries around it may use
        "SELECT COLUMNS(*)::VARCHAR FROM moments",
        "SELECT (SELECT max(t) FROM moments)::DATE",
        "SELECT year(max(t) OVER ()) AS y FROM moments",
        "FROM moments PIVOT (max(t::DATE) FOR o IN ('2024-01-01 00:00:00+00'))",
    ],
)
def test_a_query_without_a_faster_form_is_unchanged(sql: str) -> None:
    assert GATE.check(sql).faster is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t::DATE AS d, count(*) AS n FROM moments GROUP BY ALL ORDER BY 1",
        "SELECT t::DATE, count(*) FROM moments GROUP BY t::DATE ORDER BY t::DATE",
        "WITH d AS (SELECT date_trunc('day', t) AS d FROM moments) SELECT d, year(d) FROM d ORDER BY ALL",
        "SELECT DISTINCT t::DATE FROM moments ORDER BY t::DATE DESC",
        "SELECT t::DATE AS d FROM moments UNION SELECT o::DATE FROM moments ORDER BY 1",
        "SELECT year(t), sum(hour(t)) FILTER (month(t) = 2) AS s FROM moments GROUP BY year(t)",
        "SELECT max(t) - min(t) AS d, year(max(t)) AS y, max(month(t)) AS m FROM moments",
        "SELECT t::DATE AS d, row_number() OVER (PARTITION BY t::DATE ORDER BY o) AS n FROM moments",
        "SELECT a.t::DATE FROM moments a JOIN moments b ON a.t::DATE = b.o::DATE",
        "SELECT t::DATE IN (SELECT o::DATE AS d FROM moments) AS i FROM moments",
        "SELECT date_trunc('day', t) AS d FROM moments WHERE date_trunc('day', t) > '2024-02-01'",
    ],
)
def test_queries_of_any_form_have_the_same_rows(sql: str) -> None:
    fill(["TIMESTAMPTZ '2024-02-29 12:00:00.5Z'", "NULL", "TIMESTAMPTZ '2024-02-29 13:00:00Z'"])
    quick, usual = (DATABASE.execute(text).fetchall() for text in (faster(sql).text, sql))
    assert sorted(quick, key=str) == sorted(usual, key=str)


TABLE = "(SELECT TIMESTAMPTZ '2024-02-29 12:00:00.5Z' AS t) AS v"


def test_columns_keep_their_names(workers: Processes) -> None:
    sql = f"SELECT t::DATE, year(t), extract(hour FROM t), t AS t FROM {TABLE}"
    assert faster(sql).renamed
    names = [column["name"] for column in json.loads(ask(workers, sql))["columns"]]
    assert names == [column[0] for column in DATABASE.execute(sql).description]


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT date_trunc('fortnight', t) AS d FROM {TABLE}",
        f"SELECT t::DATE AS d, nothing FROM {TABLE}",
        f"SELECT (t + INTERVAL '300000 years')::VARCHAR AS d FROM {TABLE}",
    ],
)
def test_a_failing_query_has_the_same_error_as_without_macros(workers: Processes, sql: str) -> None:
    with pytest.raises(duckdb.Error) as usual:
        DATABASE.execute(sql).fetchall()
    with pytest.raises(UserError) as error:
        ask(workers, sql)
    assert str(usual.value).partition("\n")[0] in error.value.message


def test_the_plan_has_the_faster_form(workers: Processes) -> None:
    sql = "EXPLAIN FROM range(9) AS r(n) WHERE to_timestamp(n)::DATE < '2024-01-01'"
    assert "epoch_us" in ask(workers, sql).decode()
