"""The curated zone on the real stack: what is computed, when, and that it is all there or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import dagster as dg
import pytest
from pyspark.sql.connect.session import SparkSession
from support.counting import counted_statements
from support.curated import EVER, Zone, make_zone, plain, visit
from support.forked import forked
from support.here import ingest_here as ingest
from support.http import Api, Caller
from support.ingest import event, make_owner

from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.ask import record
from pulse_pipelines.curated import rollups, tables
from pulse_pipelines.curated.commit import commit, forget
from pulse_pipelines.curated.compute import compute
from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.curated.due import due_days
from pulse_pipelines.curated.run import curate, remove_orphan_files
from pulse_pipelines.curated.summary import summary
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.moves import evolve
from pulse_resources import iceberg, postgres, spark
from pulse_resources.errors import NotFound
from pulse_resources.settings import load_settings

D1, D2 = date(2026, 11, 18), date(2026, 11, 19)
FILLED = [
    # day 1: ann comes twice with a pause, bob once
    visit("2026-11-18T09:00:00", who="ann", kind="view", amount=1.5, count=1),
    visit("2026-11-18T09:20:00", who="ann", kind="view", amount=2.5, count=2),
    visit("2026-11-18T09:50:00", who="ann", kind="buy", amount=10.25),
    visit("2026-11-18T10:20:00.000001", who="ann", kind="view", count=7),
    visit("2026-11-18T23:59:59.999999", who="bob", kind="view", amount=-3.0, count=-4),
    visit("2026-11-18T12:00:00", kind="view"),
    visit("2026-11-18T12:30:00", who="cleo", amount=4.0),
    # day 2: nobody by name
    visit("2026-11-19T00:00:00", kind="view", amount=1.0),
]
BY_KIND = (
    "SELECT kind, count(*) AS n, sum(amount) AS amount, max(timestamp) AS last FROM events GROUP BY kind"
)


@pytest.fixture(scope="module")
def filled(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Zone:
    """A tenant whose `visits` have two days, all computed; tests only look at it."""
    zone = make_zone(spark_session, tmp_path_factory.mktemp("rollups"))
    zone.write("by_kind", BY_KIND)
    zone.owner.send(*FILLED, event("o-1"))
    ingest(zone.owner)
    assert not zone.curate().failures
    assert not zone.due()
    return zone


# what is computed --------------------------------------------------------------------------------

PER_DAY = """
SELECT CAST(timestamp AS DATE) AS day, count(*) AS events, count(DISTINCT id) AS distinct_ids,
    min(timestamp) AS first_at, max(timestamp) AS last_at, count(DISTINCT coalesce(kind, '?')) AS types,
    min(amount) AS a, avg(amount) AS b, max(amount) AS c, 1 - count(amount) / count(*) AS d,
    min(count) AS e, avg(count) AS f, max(count) AS g, 1 - count(count) / count(*) AS h
FROM {table} GROUP BY 1 ORDER BY 1
"""


def test_the_daily_rollup_equals_a_query_of_duckdb(filled: Zone) -> None:
    served = filled.served("daily")
    assert list(served) == [D1, D2]
    for expected in filled.ask(PER_DAY):
        (row,) = served[expected["day"]]
        for name in ("events", "distinct_ids", "types"):
            assert row[name] == expected[name]
        for name in ("first_at", "last_at"):
            assert row[name] == utc_text(expected[name])
        numbers = {summary.pop("column"): summary for summary in row["numbers"]}
        for column, names in (("amount", "abcd"), ("count", "efgh")):
            keys = ("min", "mean", "max", "null_share")
            expected_numbers = {key: expected[name] for key, name in zip(keys, names, strict=True)}
            assert numbers[column] == pytest.approx(expected_numbers, nan_ok=False)
    count = "SELECT CAST(timestamp AS DATE) AS day, {what}, count(*) AS n FROM {{table}} GROUP BY ALL"
    for expression, field, name in (("hour(timestamp)", "by_hour", "hour"), ("kind", "by_type", "type")):
        expected = {
            (r["day"], r["key"]): r["n"] for r in filled.ask(count.format(what=f"{expression} AS key"))
        }
        actual = {(day, e[name]): e["events"] for day, (row,) in served.items() for e in row[field]}
        assert actual == expected
    assert [served[D1][0][name] for name in ("typed_by", "events_of_other_types")] == ["kind", 0]
    assert [entry["events"] for entry in served[D1][0]["by_type"]] == [5, 1, 1], "the most frequent first"


BEHAVIOUR = """
WITH e AS (SELECT CAST(timestamp AS DATE) AS day, who, timestamp AS ts FROM {table} WHERE who IS NOT NULL),
s AS (SELECT *, count(*) FILTER (WHERE new) OVER (PARTITION BY day, who ORDER BY ts) AS session FROM (
    SELECT *, coalesce(ts - lag(ts) OVER w > INTERVAL 30 MINUTE, true) AS new
    FROM e WINDOW w AS (PARTITION BY day, who ORDER BY ts))),
lengths AS (SELECT day, who, session, epoch_us(max(ts)) - epoch_us(min(ts)) AS us FROM s GROUP BY ALL),
actors AS (SELECT day, who, count(*) AS n FROM e GROUP BY ALL)
SELECT count(*) AS actors, sum(n)::BIGINT AS events, avg(n) AS events_per_actor_mean,
    quantile_cont(n, 0.5) AS events_per_actor_p50, max(n) AS events_per_actor_max,
    (SELECT min(ts) FROM e WHERE e.day = a.day) AS first_seen,
    (SELECT max(ts) FROM e WHERE e.day = a.day) AS last_seen,
    (SELECT count(*) FROM lengths l WHERE l.day = a.day) AS sessions,
    (SELECT avg(us) / 1e6 FROM lengths l WHERE l.day = a.day) AS session_seconds_mean
FROM actors a GROUP BY day
"""


def test_the_behaviour_rollup_equals_a_query_of_duckdb(filled: Zone) -> None:
    (expected,) = plain(filled.ask(BEHAVIOUR))
    served = filled.served("behaviour")
    (row,) = served[D1]
    assert row.pop("events_without_actor") == 1
    assert row == pytest.approx(expected)
    assert row["sessions"] == 4, "a pause of thirty minutes keeps a session, a microsecond more ends it"
    (nobody,) = served[D2]
    assert (nobody["actors"], nobody["events_without_actor"], nobody["first_seen"]) == (0, 1, None)
    assert "ann" not in json.dumps(plain([row])), "no row of any actor"


def test_rollups_keep_digits_of_sums_and_never_expand_spark_settings(
    zone: Zone, new_caller: Callable[..., Caller], api: Api
) -> None:
    """Of its settings Spark hides only those whose names tell that they are secret."""
    peek = "${spark.sql.catalog.pulse.jdbc.password}"
    zone.write("peeks", f"SELECT kind, '{peek}' AS n FROM events GROUP BY kind")
    total = "CAST('12345678901234567890.10' AS DECIMAL(30, 2))"
    zone.write("sums", f"SELECT kind, sum({total}) AS total, sum(count) AS n FROM events GROUP BY kind")
    zone.owner.send(visit("2026-11-18T09:00:00", kind="a", count=2**62 + 1))
    ingest(zone.owner)
    assert not zone.curate().failures
    assert zone.table("peeks")[D1] == [{"kind": "a", "n": peek}]
    assert zone.table("sums")[D1] == [
        {"kind": "a", "total": Decimal("12345678901234567890.10"), "n": 2**62 + 1}
    ]
    name = f"pulse.{'.'.join(zone.owner.tenant.curated_table('visits', 'sums'))}"
    (row,) = zone.session.sql(f"SELECT total FROM {name} WHERE total > 12345678901234567890").collect()
    assert row.total == Decimal("12345678901234567890.10")
    params = {"rollup": "sums", "from": "2026-11-18", "to": "2026-11-18"}
    text = new_caller(owner=zone.owner).http.get("/v1/datasets/visits/summary", params=params).text
    assert f'"kind":"a","total":12345678901234567890.10,"n":{2**62 + 1}' in text.replace(" ", "")


def test_the_rollup_of_a_team_equals_a_query_of_duckdb(filled: Zone) -> None:
    query = "SELECT CAST(timestamp AS DATE) AS day, kind, count(*) AS n, sum(amount) AS amount, "
    rows_by_day: dict[date, list[Any]] = {}
    for row in plain(filled.ask(query + "max(timestamp) AS last FROM {table} GROUP BY ALL")):
        rows_by_day.setdefault(date.fromisoformat(row.pop("day")), []).append(row)
    served = filled.served("by_kind")
    assert served.keys() == rows_by_day.keys()
    for day, rows in rows_by_day.items():
        assert sorted(served[day], key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("rollup", ["daily", "behaviour", "by_kind"])
def test_the_curated_table_has_the_served_rows(filled: Zone, rollup: str) -> None:
    rows, served = filled.table(rollup), filled.served(rollup)
    for day in (D1, D2):
        assert sorted(plain(rows[day]), key=str) == sorted(served[day], key=str)
    name = f"pulse.{'.'.join(filled.owner.tenant.curated_table('visits', rollup))}"
    assert filled.session.sql(f"SELECT * FROM {name}").count() == sum(map(len, served.values()))


def test_only_the_tenant_can_query_the_table_of_its_rollup(
    filled: Zone, new_caller: Callable[..., Caller]
) -> None:
    caller, stranger = new_caller(owner=filled.owner), new_caller()
    joined = (
        "SELECT sum(r.n) AS n, (SELECT count(*) FROM visits) AS events FROM visits__by_kind r JOIN"
        " visits__daily d USING (day) WHERE d.events > 0"
    )
    answer = caller.http.post("/v1/sql", json={"sql": joined}).json()
    assert answer["rows"] == [{"n": len(FILLED), "events": len(FILLED)}]
    assert sorted(answer["snapshots"]) == ["visits", "visits__by_kind", "visits__daily"]
    pinned = {"visits__by_kind": answer["snapshots"]["visits__by_kind"]}
    again = {"sql": "SELECT sum(n) AS n FROM visits__by_kind", "snapshots": pinned}
    assert caller.http.post("/v1/sql", json=again).json()["rows"] == [{"n": len(FILLED)}]
    missing = caller.http.post("/v1/sql", json={"sql": "FROM visits__by_king"})
    assert (missing.status_code, "visits__by_kind" in missing.json()["fix"]) == (404, True)
    assert stranger.http.post("/v1/sql", json={"sql": "FROM visits__by_kind"}).status_code == 404
    assert stranger.http.post("/v1/sql", json={"sql": "FROM orders__daily"}).status_code == 404
    with with_settings(CURATED__ROLLUPS_DIR=filled.folder):
        meant = caller.http.get("/v1/datasets/visits/meaning").json()["rollups"]
    (by_kind,) = [meaning for meaning in meant if meaning["name"] == "by_kind"]
    assert by_kind["table"] == "visits__by_kind"
    assert list(by_kind["columns"]) == ["day", "kind", "n", "amount", "last"]
    (daily,) = new_caller().http.get("/v1/datasets/orders/meaning").json()["rollups"]
    assert daily["table"] == "", "nothing of it has been computed"


def test_a_rollup_is_computed_from_its_recorded_snapshot(filled: Zone) -> None:
    table = registry.current_table(filled.owner.tenant, "visits")
    snapshot = iceberg.load_table(("n", "t"), table.metadata_location).current_snapshot()
    assert snapshot is not None
    assert set(filled.state("daily", "snapshot_id").values()) == {snapshot.snapshot_id}
    assert set(filled.state("daily", "snapshot_id", "orders").values()) != {snapshot.snapshot_id}


def test_without_roles_the_type_is_the_version(filled: Zone) -> None:
    (row,) = filled.served("daily", "orders")[D2]
    assert (row["typed_by"], row["by_type"]) == ("schema_version", [{"type": "1", "events": 1}])
    assert filled.served("behaviour", "orders") == {}
    assert [n["null_share"] for n in row["numbers"]] == [1.0, 1.0], "columns without a value"


def test_reconcile_does_not_count_curated_rows_as_events(filled: Zone) -> None:
    assert reconcile_tenant(filled.owner.tenant).problems == []


# when --------------------------------------------------------------------------------------------


def test_late_events_make_their_day_due_and_change_it(zone: Zone) -> None:
    """Until then it is known how far behind the rollup is."""
    tenant = zone.owner.tenant
    assert tables.states(tenant, "visits", ["daily"]) == {"daily": tables.RollupState()}
    zone.owner.send(visit("2026-11-18T09:00:00", who="ann"), visit("2026-11-19T09:00:00", who="ann"))
    ingest(zone.owner)
    assert tables.states(tenant, "visits", ["daily"])["daily"].days_behind == 2
    zone.curate()
    before = zone.state("daily", "computed_at")
    landed = record.freshness(tenant, ["visits", "visits__daily", "own.visits"])
    assert set(landed) == {"visits", "visits__daily"}, "of own tables nothing lands"
    assert landed["visits"] == landed["visits__daily"]
    zone.owner.send(visit("2026-11-18T10:00:00", who="bob"))
    ingest(zone.owner)
    state = tables.states(tenant, "visits", ["daily"])["daily"]
    assert (state.days, state.days_behind, state.events_landed_last) == (2, 1, landed["visits"])
    later = record.freshness(tenant, ["visits", "visits__daily"])
    assert later["visits__daily"] == landed["visits"] < later["visits"]
    assert [(day.day, [r.name for r in day.rollups]) for day in zone.due()] == [(D1, ["daily", "behaviour"])]
    zone.curate()
    assert tables.states(tenant, "visits", ["daily"])["daily"].days_behind == 0
    assert zone.due() == []
    after = zone.state("daily", "computed_at")
    assert after[D2] == before[D2]
    assert after[D1] > before[D1]
    for rows in (zone.served("behaviour"), zone.table("behaviour")):
        assert {day: rows_of_day[0]["actors"] for day, rows_of_day in rows.items()} == {D1: 2, D2: 1}
    assert len(zone.table("daily")[D1]) == 1, "rows of a day are replaced"


def test_a_day_waits_until_it_is_quiet(zone: Zone, monkeypatch: pytest.MonkeyPatch) -> None:
    zone.owner.send(visit("2026-11-18T09:00:00"))
    ingest(zone.owner)
    for quiet, wait, ready in ((3_600, 7_200, False), (0, 7_200, True), (3_600, 0, True)):
        monkeypatch.setenv("PULSE_CURATED__QUIET_SECONDS", str(quiet))
        monkeypatch.setenv("PULSE_CURATED__MAX_WAIT_SECONDS", str(wait))
        load_settings.cache_clear()
        assert [day.ready for day in zone.due()] == [ready]
    monkeypatch.undo()
    load_settings.cache_clear()


def test_days_that_changed_before_the_cursor_are_not_due_again(zone: Zone) -> None:
    zone.owner.send(visit("2026-11-18T09:00:00"))
    ingest(zone.owner)
    at = due_days([], EVER).at
    mine = zone.owner.tenant
    assert [d for d in due_days([], at).days if d.tenant == mine] == []
    uri = f"pulse://{mine.slug}/visits/2"
    other = {"type": "object", "properties": {"who": {"type": "string"}, "kind": {"type": "string"}}}
    other["properties"] |= {"amount": {"type": "number"}, "count": {"type": "integer"}}
    registry.publish_schema(mine, "visits", json.dumps(other))
    evolve.move_dataset(mine, "visits", uri)
    assert [d.day for d in due_days([], at).days if d.tenant == mine] == [D1], "it follows another schema"


def test_another_definition_makes_every_day_due(zone: Zone) -> None:
    zone.write("by_kind", "SELECT kind, count(*) AS n FROM events GROUP BY kind")
    zone.owner.send(visit("2026-11-18T09:00:00", kind="a"), visit("2026-11-19T09:00:00", kind="a"))
    ingest(zone.owner)
    zone.curate()
    zone.write("by_kind", "SELECT kind, count(*) / 2 AS n, 'x' AS more FROM events GROUP BY kind")
    assert {(day.day, day.rollups[0].name) for day in zone.due()} == {(D1, "by_kind"), (D2, "by_kind")}
    first = [replace(day) for day in zone.due() if day.day == D1]
    assert not curate(zone.session, first).failures
    rows = zone.table("by_kind")
    assert rows[D1] == [{"kind": "a", "n": 0.5, "more": "x"}]
    assert rows[D2] == [{"kind": "a", "n": None, "more": None}], "of another type, and not computed yet"
    zone.curate()
    assert zone.table("by_kind")[D2] == zone.served("by_kind")[D2] == [{"kind": "a", "n": 0.5, "more": "x"}]


# who sees what -----------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_alone(filled: Zone) -> None:
    stranger = make_owner().tenant
    with postgres.tenant_transaction("pulse_api", stranger.tenant_id) as connection:
        assert connection.execute("SELECT count(*) FROM summaries").fetchone() == (0,)
    with postgres.transaction("pulse_api") as connection:
        assert connection.execute("SELECT count(*) FROM summaries").fetchone() == (0,)


def test_a_statement_that_reads_a_table_of_another_tenant_is_refused(zone: Zone, filled: Zone) -> None:
    """Whatever gets past the parser is stopped by the plan."""
    zone.write("theft", "SELECT 1 AS n FROM events", grain="")
    zone.owner.send(visit("2026-11-18T09:00:00"))
    ingest(zone.owner)
    theirs = f"pulse.{filled.owner.tenant.namespace}.visits"
    due = zone.due()
    (theft,) = [r for r in due[0].rollups if r.name == "theft"]
    stolen = f"SELECT 0 AS part, DATE '{D1}' AS day, count(*) AS n FROM {theirs}"
    harmful = replace(theft, statement=lambda parts: stolen)
    done = curate(zone.session, [replace(due[0], rollups=(harmful,))])
    assert "would read something else" in str(done.days[0].error)
    assert zone.served("theft") == {D1: []}
    assert zone.location("theft") is None


@pytest.mark.slow
def test_a_broken_file_stops_no_other(zone: Zone) -> None:
    zone.write("broken", "SELECT kind FROM secrets")
    zone.write("unknown", "SELECT kind, no_such_column AS n FROM events")
    zone.write("grainless", "SELECT kind, amount AS n FROM events")
    zone.write("divides", "SELECT kind, 1 / sum(amount) AS n FROM events GROUP BY kind")
    zone.write("fine", "SELECT kind, count(*) AS n FROM events GROUP BY kind")
    zone.owner.send(*[visit("2026-11-18T09:00:00", kind="a", amount=0) for _ in range(2)])
    zone.owner.send(visit("2026-11-19T09:00:00", kind="a", amount=1))
    ingest(zone.owner)
    done = zone.curate()
    assert done.failures == ()
    errors = {(day.rollup, day.day): day.error for day in done.days}
    slug = zone.owner.tenant.slug
    for rollup, says in (
        ("broken", "broken.sql: the query reads secrets"),
        ("unknown", "unknown.sql: [UNRESOLVED_COLUMN"),
        ("grainless", "grainless.sql: the grain (kind) does not distinguish rows"),
        ("divides", "divides.sql: [DIVIDE_BY_ZERO]"),
    ):
        assert str(errors[rollup, D1]).startswith(says)
        assert rollup == "broken" or f"tenant={slug}, dataset=visits, day={D1}" in str(errors[rollup, D1])
    assert errors["divides", D2] is None, "one day cannot be divided, the other can"
    assert {rollup for rollup, _ in errors if errors[rollup, D1] is None} == {"daily", "behaviour", "fine"}
    assert zone.due() == [], "what fails as long as it is the same is not tried again"
    zone.write("divides", "SELECT kind, 1 / (1 + sum(amount)) AS n FROM events GROUP BY kind")
    zone.curate()
    assert zone.served("divides") == {D1: [{"kind": "a", "n": 1.0}], D2: [{"kind": "a", "n": 0.5}]}
    assert set(zone.state("divides", "error").values()) == {None}


# all or nothing ----------------------------------------------------------------------------------


def curate_alone(zone: Zone) -> None:
    with spark.session() as session:
        replace(zone, session=session).curate()


@pytest.mark.slow
def test_a_killed_computation_leaves_the_old_or_the_new_rollup(zone: Zone) -> None:
    zone.write("by_kind", "SELECT kind, count(*) AS n FROM events GROUP BY kind")

    def everything() -> list[Any]:
        return [
            plain(zone.served(name)[D1]) for name in ("daily", "behaviour", "by_kind") if zone.served(name)
        ]

    def tables() -> list[Any]:
        return [plain(zone.table(name)[D1]) for name in ("daily", "behaviour", "by_kind")]

    for number, (point, new) in enumerate(
        [
            ("curate.staged", False),
            ("curate.before_commit", False),
            ("curate.after_commit", True),
        ]
    ):
        zone.owner.send(visit("2026-11-18T09:00:00", kind="a", who="ann"))
        ingest(zone.owner)
        before = everything()
        alone = replace(zone, session=None)  # type: ignore[arg-type]
        forked(curate_alone, alone, PULSE_FAIL_POINT=point).killed()
        if new:
            assert everything()[0][0]["events"] == number + 1
            assert tables() == everything()
            assert zone.due() == []
        else:
            assert everything() == before == []
            assert zone.location("daily") is None
            assert len(zone.due()) == 1
    assert reconcile_tenant(zone.owner.tenant).problems == []


def test_a_table_of_many_commits_stays_small(zone: Zone) -> None:
    days = [date(2026, 10, n + 1) for n in range(14)]
    zone.owner.send(*[visit(f"{day}T09:00:00", kind="a") for day in days])
    ingest(zone.owner)
    due = [replace(day, rollups=(DAILY,)) for day in zone.due()]
    ((result,),), failures = compute(zone.session, due)
    assert failures == []
    counts = []
    for day in days:
        (done,) = commit([replace(result, rows={day: result.rows[day]})])
        table = iceberg.load_table(("n", "t"), str(done.metadata_location))
        counts.append((len(table.snapshots()), len(table.current_snapshot().manifests(table.io))))
    assert [snapshots for snapshots, _ in counts] == [*range(1, 11), 10, 10, 10, 10]
    assert max(manifests for _, manifests in counts) <= 10
    assert {day: row["events"] for day, (row,) in zone.table("daily").items()} == dict.fromkeys(days, 1)
    tenant, name = zone.owner.tenant, zone.owner.tenant.curated_table("visits", "daily")
    assert remove_orphan_files(tenant, name) == 0, "what is young may be somebody's who is about to commit"
    assert remove_orphan_files(tenant, name, timedelta(0)) >= 4, (
        "a manifest and its list for each snapshot that is gone"
    )
    assert remove_orphan_files(tenant, name, timedelta(0)) == 0
    assert len(zone.table("daily")) == len(days)
    assert zone.session.sql(f"SELECT * FROM pulse.{'.'.join(name)}").count() == len(days)


# what is gone ------------------------------------------------------------------------------------


def test_a_deleted_dataset_takes_its_summaries_along(zone: Zone) -> None:
    zone.owner.send(visit("2026-11-18T09:00:00"), event("o-1"))
    ingest(zone.owner)
    due = zone.due()
    zone.curate()
    location = zone.location("daily")
    registry.delete_dataset(zone.owner.tenant, "visits")
    assert zone.location("daily") is None
    assert zone.location("daily", "orders") is not None
    with postgres.tenant_transaction("pulse_api", zone.owner.tenant.tenant_id) as connection:
        summaries = connection.execute("SELECT DISTINCT rollup, dataset_id FROM summaries").fetchall()
    assert summaries == [("daily", registry.find_dataset(zone.owner.tenant, "orders").dataset_id)]
    assert zone.ask("SELECT events FROM {table}", location), "files stay"
    visits = [day for day in due if day.dataset.slug == "visits"]
    assert curate(zone.session, visits).days == (), "a run that began before the deletion"

    registry.create_dataset(zone.owner.tenant, "visits", f"pulse://{zone.owner.tenant.slug}/visits/1")
    zone.owner.send(*[visit("2026-11-18T09:00:00") for _ in range(2)])
    ingest(zone.owner)
    assert curate(zone.session, visits).days == (), "nor does it write into its successor"
    zone.curate()
    assert zone.served("daily")[D1][0]["events"] == zone.table("daily")[D1][0]["events"] == 2


ERASED = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files)
VALUES ('erasure', %s, %s, 'visits', %s, -1, 0, 0, 0)
"""


def test_results_read_before_an_erasure_are_not_served_after_it(zone: Zone) -> None:
    zone.owner.send(visit("2026-11-18T09:00:00", who="ann"), visit("2026-11-19T09:00:00", who="ann"))
    ingest(zone.owner)
    zone.curate()
    results, _ = compute(zone.session, [*zone.due(), *_again(zone)])
    dataset, tenant = registry.find_dataset(zone.owner.tenant, "visits"), zone.owner.tenant
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        connection.execute(ERASED, [tenant.tenant_id, dataset.dataset_id, D1])
        assert forget(connection, dataset.dataset_id, [D1]) == 2
    assert zone.served("daily").keys() == {D2}
    for answers in results:
        assert {day.day for day in commit(answers)} == {D2}
        name = tenant.curated_table("visits", answers[0].rollup.name)
        assert remove_orphan_files(tenant, name, timedelta(0)) == 0, "nor is it left in the folder"
    assert zone.served("daily").keys() == {D2}
    assert [day.day for day in zone.due()] == [D1]
    zone.curate()
    assert zone.served("daily").keys() == {D1, D2}


def _again(zone: Zone) -> list[Any]:
    from pulse_pipelines.curated.due import of_day

    dataset = registry.find_dataset(zone.owner.tenant, "visits")
    definitions = rollups.of_dataset(dataset, [])
    return [of_day(zone.owner.tenant, dataset, day, rollup) for day in (D1, D2) for rollup in definitions]


# how it is served --------------------------------------------------------------------------------


def test_the_summary_over_http(zone: Zone, new_caller: Callable[..., Caller], api: Api) -> None:
    caller = new_caller(owner=zone.owner)
    path, days = "/v1/datasets/visits/summary", {"from": "2026-11-01", "to": "2026-11-30"}
    assert caller.http.get(path, params=days).json()["days"] == []
    zone.owner.send(visit("2026-11-18T09:00:00", who="ann"))
    ingest(zone.owner)
    (waiting,) = caller.http.get(path, params=days).json()["days"]
    assert (waiting["day"], waiting["computed_at"], waiting["changed_since"]) == ("2026-11-18", None, True)
    zone.curate()
    answer = caller.http.get(path, params=days | {"rollup": "behaviour"})
    document = answer.json()
    assert (document["dataset"], document["rollup"], document["from"]) == (
        "visits",
        "behaviour",
        "2026-11-01",
    )
    (day,) = document["days"]
    assert (day["changed_since"], day["error"], day["rows"][0]["actors"]) == (False, None, 1)
    assert day["snapshot_id"] == str(zone.state("behaviour", "snapshot_id")[D1])
    zone.owner.send(visit("2026-11-18T09:00:00", who="bob"))
    ingest(zone.owner)
    (day,) = caller.http.get(path, params=days | {"rollup": "behaviour"}).json()["days"]
    assert (day["changed_since"], day["rows"][0]["actors"]) == (True, 1)

    for params, status, says in (
        ({"from": "2026-11-02", "to": "2026-11-01"}, 422, "before the first"),
        ({"from": "2020-01-01", "to": "2026-11-01"}, 422, "more than 400 days"),
        ({"from": "20261101"}, 422, "query.from"),
        ({"from": "1700000000"}, 422, "query.from"),
        ({"rollup": "by_nobody"}, 404, "computed about a minute after events have landed"),
        ({"rollup": "x'; --"}, 422, "query.rollup"),
    ):
        answer = caller.http.get(path, params=params)
        assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert new_caller().http.get(path).status_code == 404, "another tenant's dataset"


def test_days_of_a_summary_are_read_together(filled: Zone) -> None:
    summary(filled.owner.tenant, "visits", first=D1, last=D1)  # a new connection has statements of its own
    with counted_statements() as of_a_day:
        summary(filled.owner.tenant, "visits", first=D1, last=D1)
    with counted_statements() as of_a_year:
        summary(filled.owner.tenant, "visits", first=date(2026, 1, 1), last=date(2026, 11, 30))
    assert of_a_year == of_a_day


# in Dagster --------------------------------------------------------------------------------------


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, zone: Zone) -> Zone:
    """Days are due at once, and the teams' files are those of the test."""
    monkeypatch.setenv("PULSE_CURATED__QUIET_SECONDS", "0")
    monkeypatch.setenv("PULSE_CURATED__ROLLUPS_DIR", str(zone.folder))
    load_settings.cache_clear()
    yield zone
    monkeypatch.undo()
    load_settings.cache_clear()


def test_the_sensor_and_the_job(eager: Zone) -> None:
    from pulse_pipelines.definitions import defs
    from pulse_pipelines.defs.curated.sensor import curated_due

    eager.write("broken", "SELECT kind FROM secrets")
    (eager.folder / "nameless.sql").write_text("SELECT 1")
    eager.owner.send(visit("2026-11-18T09:00:00", kind="a"), visit("2026-11-19T09:00:00", kind="a"))
    ingest(eager.owner)
    loaded = defs()
    with dg.DagsterInstance.ephemeral() as instance:
        cursor, results = None, list[dg.ExecuteInProcessResult]()
        while len(results) < 20:  # a run takes the due days of all tenants, up to a limit
            context = dg.build_sensor_context(instance=instance, definitions=loaded, cursor=cursor)
            tick = curated_due.evaluate_tick(context)
            if not tick.run_requests:
                break
            (request,) = tick.run_requests
            cursor = tick.cursor
            results.append(
                loaded.resolve_job_def("curate").execute_in_process(
                    run_config=request.run_config, instance=instance
                )
            )
            assert results[-1].success, "a team's broken file fails its check, not the run"
        assert results
        mine = [
            event.asset_materialization
            for result in results
            for key in ("daily", "behaviour")
            for event in instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
            if event.asset_materialization.asset_key == dg.AssetKey(["curated", "visits", key])
        ]
        slug = eager.owner.tenant.slug
        cells = [(m.asset_key.path[-1], m.partition) for m in mine if m.tags.get("pulse/tenant") == slug]
        expected = [
            (name, dg.MultiPartitionKey({"day": str(day), "tenant": slug}))
            for name in ("daily", "behaviour")
            for day in (D1, D2)
        ]
        assert sorted(cells) == sorted(expected)
        checks = {e.asset_key.path[-1]: e for run in results for e in run.get_asset_check_evaluations()}
        assert checks["daily"].passed
        assert not checks["broken"].passed
        assert "broken.sql: the query reads secrets" in str(checks["broken"].description)
        (output,) = [e for e in results[0].all_events if e.event_type_value == "STEP_OUTPUT"]
        assert "nameless.sql: the header has no dataset" in str(output.step_output_data.metadata["problems"])
    assert eager.due() == []


def test_a_partition_is_computed_on_request(eager: Zone) -> None:
    from pulse_pipelines.definitions import defs

    eager.owner.send(visit("2026-11-18T09:00:00", kind="a"), visit("2026-11-19T09:00:00", kind="a"))
    ingest(eager.owner)
    slug, loaded, key = eager.owner.tenant.slug, defs(), dg.AssetKey(["curated", "visits", "daily"])
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tenants/visits", [slug])
        job = dg.define_asset_job("one", dg.AssetSelection.assets(key))
        result = (
            dg.Definitions.merge(loaded, dg.Definitions(jobs=[job]))
            .resolve_job_def("one")
            .execute_in_process(
                partition_key=dg.MultiPartitionKey({"day": str(D1), "tenant": slug}), instance=instance
            )
        )
        (materialization,) = result.asset_materializations_for_node("curated__visits__daily")
        assert materialization.metadata["dagster/partition_row_count"].value == 1
    assert eager.served("daily").keys() == {D1}
    assert eager.served("behaviour") == {}
    with pytest.raises(NotFound):
        registry.find_dataset(eager.owner.tenant, "visits__daily")
