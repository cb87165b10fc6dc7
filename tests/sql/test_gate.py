"""The gate: what SQL may say, and that it says no to all else, with a word of what to do."""

import duckdb
import pytest

from pulse_pipelines.sql import allowed
from pulse_pipelines.sql.gate import MAX_CHARACTERS, Gate
from pulse_resources.errors import UserError

GATE = Gate()
REFUSED_FUNCTIONS = (
    "add_parquet_key",
    "current_connection_id",
    "current_query",
    "current_setting",
    "currval",
    "getvariable",
    "json_deserialize_sql",
    "json_serialize_plan",
    "json_serialize_sql",
    "nextval",
    "parse_duckdb_log_message",
    "pg_sleep",
    "setseed",
    "sleep_ms",
    "txid_current",
    "write_log",
)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("select country, count(*) from Orders group by all order by 2 desc limit 3", {"orders"}),
        ("WITH o AS (SELECT * FROM orders) SELECT * FROM o JOIN visits USING (id)", {"orders", "visits"}),
        ("FROM orders", {"orders"}),
        (
            'FROM Reports.By_Day r JOIN "deep.er".t USING (x), orders',
            {"Reports.By_Day", "deep.er.t", "orders"},
        ),
        ("WITH t AS (SELECT 1 AS a) SELECT * FROM t, reports.t", {"reports.t"}),
        ("DESCRIBE reports.t", {"reports.t"}),
        ("SUMMARIZE reports.t", {"reports.t"}),
        ("DESCRIBE orders", {"orders"}),
        ("SUMMARIZE orders", {"orders"}),
        ("FROM orders PIVOT (sum(amount) FOR country IN ('DE', 'FR'))", {"orders"}),
        ("SELECT * FROM (VALUES (1), (2)) v(a), range(3), unnest([1, 2])", set()),
        ("SELECT 1e400, -1e999 AS x", set()),
        ("SELECT (SELECT max(x) FROM a), EXISTS (FROM b), ARRAY(SELECT y FROM c)", {"a", "b", "c"}),
        ("SELECT sum(x) FILTER (x > 1) OVER (PARTITION BY y ORDER BY z), row_number() OVER () FROM t", {"t"}),
        ("SELECT context ->> '$.ip', [y + 1 for y in xs if y > 1], s.upper(), {'a': 1}.a FROM t", {"t"}),
        ("SELECT now() - INTERVAL 1 DAY, extract(day FROM d), d AT TIME ZONE 'UTC' FROM t", {"t"}),
        ("WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r WHERE n < 9) FROM r", set()),
    ],
)
def test_ordinary_queries_are_accepted(sql: str, tables: set[str]) -> None:
    checked = GATE.check(sql)
    assert checked.tables == tables
    assert (checked.text, checked.explain) == (sql, False)


@pytest.mark.parametrize("written", ["%Y", "%Y.%n", "%%n %Y", "100%%%n"])
def test_a_format_that_is_written_exactly_may_be_used(written: str) -> None:
    GATE.check(f"SELECT strftime(TIMESTAMP '2026-01-01', '{written}')")


def test_explain_is_of_a_query_that_may_run() -> None:
    checked = GATE.check(" explain\nSELECT 1")
    assert (checked.text, checked.explain) == ("SELECT 1", True)
    with pytest.raises(UserError, match="read_text"):
        GATE.check("EXPLAIN FROM read_text('/etc/passwd')")
    for sql in ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN EXPLAIN SELECT 1", "EXPLAIN DROP TABLE x"):
        with pytest.raises(UserError, match="not a query that only reads"):
            GATE.check(sql)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "0 statements"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT 1; DROP TABLE x", "not a query that only reads"),
        ("SELEC 1", "cannot be parsed"),
        ("SELECT ?", "parameters"),
        ("SELECT $name", "parameters"),
        ("PIVOT orders ON country", "PIVOT with its values"),
        ("SHOW TABLES", "SHOW"),
        ("FROM (SHOW ALL TABLES)", "SHOW"),
        ("FROM lake.reports.orders", "more than a namespace"),
        ("FROM memory.main.orders", "more than a namespace"),
        ("FROM information_schema.tables", "DuckDB's own"),
        ("FROM INFORMATION_SCHEMA.tables", "DuckDB's own"),
        ("FROM pg_catalog.pg_settings", "DuckDB's own"),
        ("FROM main.orders", "DuckDB's own"),
        ("FROM temp.orders", "DuckDB's own"),
        ("FROM system.duckdb_settings", "DuckDB's own"),
        ("FROM memory.orders", "DuckDB's own"),
        # Without such a view DuckDB would join the parts to the name of a file.
        ('FROM "/etc/passwd".csv', "no table"),
        ('FROM "s3://bucket/x".parquet', "no table"),
        ('FROM reports."x.csv"', "no table"),
        ('FROM "a..b".t', "no table"),
        ("FROM reports.t, Reports.t", "two ways"),
        ("FROM reports.orders AT (VERSION => 3)", "`snapshots`"),
        ("FROM pg_tables", "DuckDB's own"),
        ("FROM duckdb_tables", "DuckDB's own"),
        # A name that does not reach where it is used: there DuckDB would take it for what it has itself.
        (
            "SELECT * FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1) FROM duckdb_tables)",
            "DuckDB's own",
        ),
        ('SELECT * FROM \'a.csv\', (WITH "a.csv" AS (SELECT 1) FROM "a.csv")', "no table"),
        ('WITH "/etc/passwd" AS (SELECT 1) SELECT 1', "not a name"),
        ("FROM orders AT (VERSION => 3)", "`snapshots`"),
        ("FROM " + ", ".join(f"t{n}" for n in range(21)), "21 tables"),
        ("SELECT " + "[" * 900 + "1" + "]" * 900, "nested too deeply"),
        ("SELECT " + "+".join(["1"] * 1_100), "depth"),
        ("SELECT " + "(" * 30_000 + "1" + ")" * 30_000, "memory exhausted"),
        ("SELECT '" + "x" * MAX_CHARACTERS + "'", "characters"),
        ("SELECT no_such_function(1)", "no_such_function"),
        ("SELECT strftime(TIMESTAMP '2026-01-01', '%n %Y')", "after %n"),
        ("SELECT strftime(TIMESTAMP '2026-01-01', '%n\n')", "after %n"),
        ("SELECT strftime(TIMESTAMP '2026-01-01', '%n' || '%Y')", "is computed"),
        *((f"SELECT {name}('x')", name) for name in REFUSED_FUNCTIONS),
    ],
)
def test_all_else_is_refused(sql: str, why: str) -> None:
    with pytest.raises(UserError) as refused:
        GATE.check(sql)
    assert why in str(refused.value)


def test_only_table_functions_that_read_nothing_may_be_used() -> None:
    """Of all that this DuckDB has; one that a newer DuckDB brings is refused until somebody looks at it."""
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type LIKE '%table%'"
    known = {name for (name,) in duckdb.sql(query).fetchall()}
    assert known >= allowed.TABLE_FUNCTIONS
    for name in sorted(known - allowed.TABLE_FUNCTIONS):
        with pytest.raises(UserError, match="cannot be used"):
            GATE.check(f"SELECT * FROM \"{name}\"('x')")


def test_permitted_functions_exist_in_duckdb() -> None:
    known = {
        name.lower() for (name,) in duckdb.sql("SELECT function_name FROM duckdb_functions()").fetchall()
    }
    assert allowed.FUNCTIONS - {"unnest"} <= known
    assert not allowed.FUNCTIONS & set(REFUSED_FUNCTIONS)
