"""What a team's SQL file may say, and what a schema may say of actors: no services needed."""

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from pulse_pipelines.curated.commit import _json
from pulse_pipelines.curated.query_check import check_reads
from pulse_pipelines.curated.rollups import team_rollups
from pulse_pipelines.curated.sqlfile import checked_query
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.compatibility import incompatibilities
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.schemas.shorthand import expand
from pulse_pipelines.domain.tenant import check_slug
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_resources.errors import Terminal, UserError

# roles -------------------------------------------------------------------------------------------

PROPERTIES = '"properties": {"who": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}}'


def schema(roles: str) -> str:
    return f'{{"type": "object", {roles + ", " if roles else ""}{PROPERTIES}}}'


@pytest.mark.parametrize("roles", ['"x-pulse-actor": "who"', '"x-pulse-actor": "n"', '"x-pulse-type": "who"'])
def test_a_declared_property_can_play_a_role(roles: str) -> None:
    check_document(schema(roles))


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ('"x-pulse-actor": "nobody"', "/x-pulse-actor names 'nobody', which is not a declared property"),
        ('"x-pulse-actor": 7', "/x-pulse-actor names 7"),
        ('"x-pulse-actor": null', "/x-pulse-actor names None"),
        ('"x-pulse-actor": ["who"]', "/x-pulse-actor names ['who']"),
        ('"x-pulse-actor": "x"', "/x-pulse-actor names 'x', whose column is of type double"),
        ('"x-pulse-type": "n"', "/x-pulse-type names 'n', whose column is of type long"),
    ],
)
def test_an_invalid_role_is_refused(roles: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        check_document(schema(roles))
    assert reason in caught.value.message
    assert "string" in str(caught.value.fix)


def test_roles_come_and_go_with_versions() -> None:
    without, actor = check_document(schema("")), check_document(schema('"x-pulse-actor": "who"'))
    other = check_document(schema('"x-pulse-actor": "n"'))
    for old, new in ((without, actor), (actor, other), (actor, without)):
        assert incompatibilities(old, new) == []


def test_the_shorthand_has_roles() -> None:
    document = expand({"fields": {"who": "string"}, "x-pulse-actor": "who"})
    assert document["x-pulse-actor"] == "who"


def test_a_dataset_cannot_be_called_like_a_curated_table() -> None:
    with pytest.raises(UserError, match="belong to curated tables"):
        check_slug("dataset", "orders__daily")
    assert check_slug("tenant", "a__b") == "a__b"


# queries -----------------------------------------------------------------------------------------

ALLOWED = [
    "SELECT kind, count(*) AS n FROM events GROUP BY kind",
    "WITH a AS (SELECT kind, sum(amount) AS s FROM events GROUP BY kind) SELECT kind, s FROM a",
    "SELECT a.kind, b.n FROM events a JOIN (SELECT kind, max(id) AS n FROM events GROUP BY 1) b USING (kind)",
    "SELECT kind, percentile(amount, 0.5) AS p, max_by(who, amount) AS top FROM events GROUP BY kind",
    "SELECT kind, sum(amount) OVER (PARTITION BY kind) AS s FROM events WHERE who IS NOT NULL",
    "SELECT kind, count(*) FILTER (WHERE amount > 1) AS n FROM events GROUP BY kind ORDER BY n LIMIT 5",
    "SELECT kind, 1 AS n FROM events UNION ALL SELECT who, 2 FROM events",
    "SELECT tag, count(*) AS n FROM events LATERAL VIEW explode(split(kind, ',')) t AS tag GROUP BY tag",
    "SELECT CASE WHEN kind LIKE 'a%' THEN 1 ELSE 2 END AS kind, count(*) AS n FROM events GROUP BY 1",
    "SELECT date_trunc('hour', timestamp) AS hour, count(DISTINCT who) AS n FROM events GROUP BY 1;",
    "SELECT get_json_object(_extra, '$.a') AS a, unix_micros(max(timestamp)) AS m FROM events GROUP BY 1",
]
REFUSED = {
    "another tenant's table": "SELECT * FROM pulse.pulse_0123.orders",
    "a qualified events": "SELECT * FROM pulse.events",
    "another table in a subquery": "SELECT kind, (SELECT max(id) FROM secrets) AS m FROM events",
    "another table in a join": "SELECT e.kind, s.id FROM events e, secrets s",
    "another table in a WHERE": "SELECT kind FROM events WHERE id IN (SELECT id FROM pulse.x.y)",
    "another table in a CTE": "WITH a AS (SELECT * FROM b.c) SELECT * FROM a",
    "a CTE out of its scope": "SELECT kind, n FROM (WITH a AS (SELECT 1 AS n) SELECT n FROM a) x, a",
    "a CTE called events": "WITH events AS (SELECT * FROM events) SELECT kind FROM events",
    "a path": "SELECT * FROM parquet.`s3://pulse/raw`",
    "a named path": "SELECT * FROM `s3://pulse/raw`",
    "a metadata table": "SELECT * FROM events.snapshots",
    "another snapshot": "SELECT * FROM events VERSION AS OF 1",
    "an earlier moment": "SELECT * FROM events TIMESTAMP AS OF '2026-01-01'",
    "an identifier clause": "SELECT * FROM IDENTIFIER('pulse.x.y')",
    "a table function": "SELECT * FROM range(10)",
    "a file function": "SELECT * FROM read_files('s3://pulse/raw')",
    "reflection": "SELECT reflect('java.lang.System', 'getenv', 'HOME') AS h FROM events",
    "a Java method": "SELECT java_method('java.util.UUID', 'randomUUID') AS u FROM events",
    "a script": "SELECT TRANSFORM (kind) USING 'cat' AS x FROM events",
    "a file's name": "SELECT input_file_name() AS f FROM events",
    "a session's user": "SELECT current_user() AS u FROM events",
    "chance": "SELECT rand() AS r FROM events",
    "the clock": "SELECT current_timestamp() AS t FROM events",
    "a hint": "SELECT /*+ BROADCAST(events) */ kind FROM events",
    "a sample": "SELECT kind FROM events TABLESAMPLE (10 PERCENT)",
    "two statements": "SELECT kind FROM events; SELECT kind FROM events",
    "a second statement that does harm": "SELECT kind FROM events; DROP TABLE pulse.x.y",
    "no SELECT": "DELETE FROM events",
    "a table that is made": "CREATE TABLE t AS SELECT * FROM events",
    "an insert": "INSERT INTO t SELECT * FROM events",
    "a setting": "SET spark.sql.ansi.enabled = false",
    "a call": "CALL pulse.system.expire_snapshots(table => 'x.y')",
    "nothing": "-- only a remark",
    "what is no SQL": "SELECT FROM WHERE",
    "a variable": "SELECT kind, :x AS x FROM events",
}


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_query_over_events_is_taken(sql: str) -> None:
    assert "events" in checked_query(sql)


@pytest.mark.parametrize("defect", REFUSED)
def test_other_queries_are_refused(defect: str) -> None:
    with pytest.raises(UserError):
        checked_query(REFUSED[defect])


def test_a_checked_query_is_rewritten_without_comments() -> None:
    """A remark, which Spark may read otherwise than the parser, never reaches it."""
    assert checked_query("SELECT kind /* FROM secrets */ FROM events -- x") == "SELECT kind FROM events"


PLAN = """== Parsed Logical Plan ==
'Project [*]

== Analyzed Logical Plan ==
id: string
WithCTE
:- CTERelationDef 1, false
:  +- RelationV2[id#1] pulse.pulse_a.orders VERSION AS OF '7'
+- {line}

== Optimized Logical Plan ==
LocalRelation [id#1]"""


@pytest.mark.parametrize(
    "line",
    [
        "RelationV2[id#2] pulse.pulse_b.orders VERSION AS OF '7'",
        "RelationV2[id#2] pulse.pulse_a.orders",
        "RelationV2[id#2] pulse.pulse_a.orders VERSION AS OF '8'",
        "LogicalRelation [value#1] text",
        "Relation [value#1] text",
    ],
)
def test_a_plan_that_reads_something_else_is_refused(line: str) -> None:
    tables = ["pulse.pulse_a.orders VERSION AS OF '7'"]
    with pytest.raises(Terminal, match="something else"):
        check_reads(PLAN.format(line=line), tables)
    check_reads(PLAN.format(line="CTERelationRef 1, true"), tables)
    with pytest.raises(Terminal):
        check_reads("no plan", tables)


# files -------------------------------------------------------------------------------------------


def test_the_header_of_a_file_describes_its_rollup(tmp_path: Path) -> None:
    header = "-- dataset: orders\n-- grain: country, kind\n-- description: Why.\n"
    (tmp_path / "orders_by_country.sql").write_text(header + "SELECT country, kind, 1 AS n FROM events")
    (rollup,) = team_rollups(tmp_path)
    definition = (
        rollup.name,
        rollup.dataset,
        rollup.grain,
        rollup.description,
        rollup.problem,
        rollup.source,
    )
    assert definition == ("by_country", "orders", ("country", "kind"), "Why.", None, "orders_by_country.sql")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a", "SELECT kind FROM events", "the header has no dataset"),
        ("a", "-- dataset: orders\nSELECT kind FROM events", "the header has no grain"),
        ("a", "-- dataset: orders\n-- grain: day\nSELECT 1 FROM events", "'day' cannot be in the grain"),
        ("a", "-- dataset: orders\n-- grain: a b\nSELECT 1 FROM events", "'a b' cannot be in the grain"),
        ("orders_daily", "-- dataset: orders\n-- grain: kind\nSELECT 1 FROM events", "'daily' is not a name"),
        (
            "orders_latest",
            "-- dataset: orders\n-- grain: kind\nSELECT 1 FROM events",
            "'latest' is not a name",
        ),
        ("a__b", "-- dataset: orders\n-- grain: kind\nSELECT 1 FROM events", "'a__b' is not a name"),
        ("a", "-- dataset: orders\n-- grain: kind\nSELECT 1 FROM x", "the query reads x"),
    ],
)
def test_a_broken_file_has_a_problem_with_the_reason(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    (tmp_path / f"{name}.sql").write_text(text)
    (rollup,) = team_rollups(tmp_path)
    assert reason in str(rollup.problem)


GOOD = "-- dataset: orders\n-- grain: kind\nSELECT kind, 1 AS n FROM events"


@pytest.mark.parametrize("name", ["daily", "a b", "a'b", "A", "a.b", "x" * 61])
def test_a_file_with_an_invalid_rollup_name_has_no_asset(tmp_path: Path, name: str) -> None:
    """Dagster takes no two assets of a key, and not every name: it would load none of anybody's."""
    (tmp_path / f"{name}.sql").write_text(GOOD)
    (rollup,) = team_rollups(tmp_path)
    assert rollup.dataset == ""
    assert f"{name!r} is not a name for a rollup" in str(rollup.problem)


def test_an_unreadable_file_does_not_stop_other_files(tmp_path: Path) -> None:
    (tmp_path / "folder.sql").mkdir()
    deep = f"{'(' * 5_000}1{')' * 5_000} AS n"
    (tmp_path / "deep.sql").write_text(GOOD.replace("1 AS n", deep))
    (tmp_path / "good.sql").write_text(GOOD)
    broken, folder, good = team_rollups(tmp_path)
    assert good.problem is None
    assert "Is a directory" in str(folder.problem)
    assert broken.problem


def test_two_files_cannot_be_the_same_rollup(tmp_path: Path) -> None:
    for name in ("by_kind", "visits_by_kind"):
        (tmp_path / f"{name}.sql").write_text(
            "-- dataset: visits\n-- grain: kind\nSELECT kind, 1 AS n FROM events"
        )
    first, second = team_rollups(tmp_path)
    assert (first.problem, first.dataset, second.dataset) == (None, "visits", "")
    assert "by_kind.sql is the rollup 'by_kind' of 'visits' already" in str(second.problem)


ACTS = schema('"x-pulse-actor": "who"')
ACTING = Dataset(
    *(uuid.uuid4(), uuid.uuid4(), "visits", "visits", "pulse://acme/visits/1", ACTS),
    *(table_schema(columns(json.loads(ACTS))).model_dump_json(), "refuse", datetime.now(UTC), 7),
)


@pytest.mark.parametrize(
    ("grain", "rows", "reason"),
    [
        ("kind", {"kind": ["a", "a"], "n": [1, 2]}, "{'kind': 'a'} is there twice"),
        ("kind", {"kind": pa.array([None, None], pa.string()), "n": [1, 2]}, "{'kind': None} is there twice"),
        ("kind", {"n": [1]}, "no column 'kind'"),
        ("kind", {"kind": ["a"]}, "no measure"),
        ("who", {"who": ["a"], "n": [1]}, "no summary keeps a row per person"),
        ("kind", {"kind": ["a"], "n": [[1]]}, "column 'n' is of type list"),
        ("kind", {"kind": ["a"], "count(1)": [1]}, "'count(1)' is not a name"),
        ("kind", {"kind": ["a"], "day": [1]}, "'day' is not a name"),
        ("kind", {"kind": ["a"], "n": [1], "N": [1]}, "two columns are called 'n'"),
        ("kind", {"kind": [str(n) for n in range(1001)], "n": [1] * 1001}, "1,001 rows, the limit is 1,000"),
        ("", {"n": [1, 2]}, "without a grain a day may have one row"),
    ],
)
def test_rows_that_break_the_promise_are_refused(tmp_path: Path, grain: str, rows: dict, reason: str) -> None:
    header = f"-- dataset: visits\n-- grain: {grain}\n"
    (tmp_path / "a.sql").write_text(header + "SELECT 1 AS n FROM events")
    (rollup,) = team_rollups(tmp_path)
    assert rollup.problem is None
    with pytest.raises(UserError) as caught:
        rollup.checked(pa.table(rows), ACTING)
    assert reason in caught.value.message


def test_numbers_are_longs_and_doubles(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- dataset: visits\n-- grain: kind\nSELECT kind, 1 AS n FROM events")
    (rollup,) = team_rollups(tmp_path)
    rows = pa.table({"kind": ["a"], "n": pa.array([1], pa.int16()), "x": pa.array([1.5], pa.float32())})
    checked = rollup.checked(rows, ACTING)
    assert checked.schema.types == [pa.string(), pa.int64(), pa.float64()]


def test_decimals_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("-- dataset: visits\n-- grain: kind\nSELECT kind, 1 AS n FROM events")
    (rollup,) = team_rollups(tmp_path)
    total = Decimal("12345678901234567890.10")
    rows = pa.table({"kind": ["a"], "total": pa.array([total], pa.decimal128(38, 2))})
    checked = rollup.checked(rows, ACTING)
    assert checked.to_pylist() == [{"kind": "a", "total": total}]
    assert _json(checked) == '[{"kind":"a","total":12345678901234567890.10}]'
