"""Pipes: tables of a real Postgres become entities, row by row the source's, whatever their types are."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import dagster as dg
import psycopg
import pytest
from psycopg.sql import SQL
from pyspark.errors import PythonException
from support.entities import as_model, pages
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner, run_batch
from support.lake import spark
from support.pipes import bring
from support.traces import Collector

from chaos.sources import SOURCE, database
from chaos.surroundings import superuser, with_settings
from pulse_pipelines import pipes, registry
from pulse_pipelines.definitions import defs
from pulse_pipelines.defs.ingest.sensor import ingest_lag
from pulse_pipelines.defs.pipes import sensor
from pulse_pipelines.defs.pipes.sensor import PIPE as PIPE_TAG, QUEUED_OF_TENANT, pipes_due
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.ingest import attempts, sync_deletions
from pulse_pipelines.monitoring.issues import Kind, find_issues
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.pipes import addresses, progress
from pulse_pipelines.pipes.postgres import queries, tables
from pulse_pipelines.pipes.run import run
from pulse_resources import postgres
from pulse_resources.errors import Conflict, NotFound, QuotaExceeded, UserError

PIPE: dict[str, Any] = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}
TABLE = """
CREATE TABLE planes (
    tail text PRIMARY KEY, seats int, price numeric(12, 2), changed timestamptz DEFAULT now())
"""


@pytest.fixture
def source(owner: Owner) -> "Iterator[psycopg.Connection[Any]]":
    with database(owner.tenant) as connection:
        yield connection


def latest(owner: Owner, slug: str = "planes") -> dict[str, dict[str, Any]]:
    contents = dict(as_model(pages(owner, slug=slug)))
    return {key: content for key, content in contents.items() if content is not None}


def counts(owner: Owner, slug: str = "planes") -> tuple[str, int, int, int, int]:
    sync = syncs.list_syncs(owner.tenant, slug)[0]
    return sync.state, sync.created, sync.changed, sync.unchanged, sync.deleted


def test_a_table_becomes_entities_that_follow_the_source(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO planes SELECT 'N' || n, n, n / 4.0 FROM generate_series(1, 50) n")
    pipe = pipes.create(owner.tenant, definition(PIPE))
    assert (pipe.position, pipe.settled_at) == (None, None)
    assert bring(owner).rows == 50
    assert counts(owner) == (SyncState.DONE, 50, 0, 0, 0)
    assert latest(owner)["N7"].items() >= {"tail": "N7", "seats": 7, "price": "1.75"}.items()
    source.execute(
        "UPDATE planes SET seats = 0 WHERE tail = 'N1'; DELETE FROM planes WHERE tail IN ('N2', 'N3')"
    )
    source.execute("INSERT INTO planes VALUES ('new', 1)")
    bring(owner)
    assert counts(owner) == (SyncState.DONE, 1, 1, 47, 2)
    rows = source.execute("SELECT tail, seats FROM planes").fetchall()
    assert {key: content.get("seats") for key, content in latest(owner).items()} == dict(rows)
    assert pipes.find(owner.tenant, "planes").settled_at is not None
    assert reconcile_tenant(owner.tenant).balanced


def test_a_definition_that_is_invalid_today_stops_no_other_pipe(
    owner: Owner, source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that an earlier version wrote: metrics, alerts and schedules of all tenants list all pipes."""
    source.execute(TABLE)
    other = make_owner()
    pipes.create(owner.tenant, definition(PIPE))
    with database(other.tenant) as theirs:
        theirs.execute(TABLE)
        pipes.create(other.tenant, definition(PIPE))
    pipes.ask(owner.tenant, "planes")
    with superuser() as connection:
        update = "UPDATE pipes SET definition = '{}', asked_at = now() WHERE tenant_id = %s"
        connection.execute(update, [other.tenant.tenant_id])
    mine = (owner.tenant.slug, other.tenant.slug)
    for listed in (pipes.list_all_pipes(), pipes.due()):
        assert [pipe.tenant.slug for pipe in listed if pipe.tenant.slug in mine] == [owner.tenant.slug]
    assert f"pipe planes of tenant {other.tenant.slug} does not run" in caplog.text
    with superuser() as connection:
        connection.execute("DELETE FROM pipes WHERE tenant_id = %s", [other.tenant.tenant_id])


def test_a_run_and_the_deletions_that_it_leads_to_have_spans(
    owner: Owner, source: Any, collector: Collector
) -> None:
    slug = owner.tenant.slug
    source.execute(TABLE)
    source.execute("INSERT INTO planes VALUES ('N1', 1), ('N2', 2)")
    pipes.create(owner.tenant, definition(PIPE))
    syncs.allow(owner.tenant, "planes", 1)
    sent = bring(owner)
    source.execute("DELETE FROM planes WHERE tail = 'N2'")
    bring(owner)
    source.execute("DROP TABLE planes")
    with pytest.raises(NotFound):
        bring(owner)
    first, second, failed = collector.named("run pipe", pulse_tenant=slug, pulse_pipe="planes")
    assert (first.attributes["pulse.rows"], first.attributes["pulse.sync"]) == (2, sent.sync_id)
    assert (first.failed, second.failed, failed.failed) == (False, False, True)
    (deleted,) = collector.named("send deletions", pulse_tenant=slug, pulse_dataset="planes")
    assert (deleted.attributes["pulse.deletions"], deleted.parent_id) == (1, "")


def test_rows_of_a_completed_run_are_due_at_once(owner: Owner, source: Any) -> None:
    """Rows, and deletions after them; events that came before are of the same batch, later ones wait."""

    def planned() -> list[str]:
        with dg.DagsterInstance.ephemeral() as instance:
            result = ingest_lag(dg.build_sensor_context(instance=instance))
        assert isinstance(result, dg.SensorResult)
        batches = [request.tags["pulse/batch"] for request in result.run_requests or ()]
        return [batch for batch in batches if owner.tenant.slug in attempts.waiting_in(batch)]

    source.execute(TABLE)
    source.execute("INSERT INTO planes VALUES ('N1', 1), ('N2', 2)")
    pipes.create(owner.tenant, definition(PIPE))
    syncs.allow(owner.tenant, "planes", 1)
    with with_settings(INGEST__FLUSH_SECONDS=10_000):
        owner.send(event("a"))
        assert not planned()
        run(spark(), owner.tenant, "planes", 2)
        (batch,) = planned()
        run_batch(batch)
        owner.send(event("b"))
        assert not planned(), "the sync has settled"
        source.execute("DELETE FROM planes WHERE tail = 'N2'")
        run(spark(), owner.tenant, "planes", 2)
        (batch,) = planned()
        run_batch(batch)
        assert planned(), "what it deletes"


@pytest.mark.slow
def test_an_incremental_pipe_continues_from_the_settled_position(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO planes SELECT 'N' || n, n, 1, '2026-01-01' FROM generate_series(1, 9) n")
    incremental = PIPE | {"mode": "incremental", "cursor": "changed", "overlap": "1 hour"}
    pipes.create(owner.tenant, definition(incremental))
    sent = run(spark(), owner.tenant, "planes", 2)
    assert sent.is_full
    assert pipes.find(owner.tenant, "planes").position is None, "its rows are not in the log yet"
    with pytest.raises(Conflict, match="have not settled yet"):
        run(spark(), owner.tenant, "planes", 2)
    ingest(owner)
    assert str(pipes.find(owner.tenant, "planes").position).startswith("2026-01-01")
    source.execute("DELETE FROM planes WHERE tail = 'N9'")
    source.execute("UPDATE planes SET seats = -1, changed = '2025-12-31 23:30Z' WHERE tail = 'N1'")
    source.execute("UPDATE planes SET seats = -1, changed = '2025-12-31 22:30Z' WHERE tail = 'N2'")
    source.execute("INSERT INTO planes VALUES ('new', 1, 1, '2026-02-01')")
    assert not bring(owner).is_full
    assert counts(owner) == (SyncState.DONE, 1, 1, 6, 0)
    assert (latest(owner)["N1"]["seats"], latest(owner)["N2"]["seats"]) == (-1, 2), "one is too old"
    assert "N9" in latest(owner), "deletions are seen by full runs alone"
    pipes.reset(owner.tenant, "planes")
    assert bring(owner).is_full
    assert counts(owner) == (SyncState.DONE, 0, 1, 8, 1)
    pipes.delete(owner.tenant, "planes")
    assert pipes.create(owner.tenant, definition(incremental)).position is None, "another one of this name"
    assert bring(owner).is_full


@pytest.mark.slow
def test_a_failed_run_deletes_nothing_and_the_next_one_reads_all(
    owner: Owner, source: Any, at: AtPoint
) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO planes SELECT 'N' || n FROM generate_series(1, 20) n")
    pipes.create(owner.tenant, definition(PIPE))
    bring(owner)
    source.execute("DELETE FROM planes WHERE tail IN ('N1', 'N2')")
    source.execute("INSERT INTO planes VALUES ('N21')")

    def die() -> None:
        raise ConnectionError("the process ends here")

    at("pipe.loaded", die)
    with pytest.raises(ConnectionError):
        run(spark(), owner.tenant, "planes", 2)
    assert "ConnectionError" in str(pipes.find(owner.tenant, "planes").error)
    (issue,) = [
        issue for issue in find_issues({}, 0)[0].issues if issue.about.get("tenant") == owner.tenant.slug
    ]
    assert (issue.kind, issue.about["pipe"]) == (Kind.PIPE_FAILED, "planes")
    ingest(owner)  # what was sent
    assert sync_deletions.send_of(owner.tenant) == 0
    assert counts(owner) == (SyncState.FAILED, 1, 0, 18, 0), "what settled is counted, though the run failed"
    assert len(latest(owner)) == 21
    bring(owner)
    assert (counts(owner), len(latest(owner))) == ((SyncState.DONE, 0, 0, 19, 2), 19)
    day = pipes.last_day(owner.tenant)[owner.tenant.tenant_id, "planes"]
    assert day == pipes.LastDay(created=21, unchanged=18 + 19, deleted=2)


def test_the_error_of_a_failed_task_is_its_exception_alone(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE))
    stack = 'Traceback (most recent call last):\n  File "/secret/place.py", line 1, in run\n'
    raised = "ValueError: 1\n\nAnother:\n\npsycopg.errors.InvalidDatetimeFormat: 'banana'\nLINE 1: banana\n"
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        progress.failed(connection, "planes", PythonException(f"In a worker.\n{stack}{raised}"))
    error = str(pipes.find(owner.tenant, "planes").error)
    assert "a task failed with psycopg.errors.InvalidDatetimeFormat;" in error
    assert not any(word in error for word in ("secret", "banana", "Traceback"))


def test_a_source_that_a_pipe_cannot_read_is_refused(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    source.execute("CREATE TABLE keyless (a int); CREATE VIEW v AS SELECT 1 AS a")
    source.execute("CREATE TABLE odd (a int PRIMARY KEY, _b int); CREATE TABLE loose (a int UNIQUE, b int)")
    for members, why in (
        ({"table": "keyless"}, "no primary key"),
        ({"table": "v"}, "the source is not a table"),
        ({"table": "odd"}, "begins with _"),
        ({"table": "loose", "key": ["a"]}, "no unique index"),
        ({"table": "nowhere"}, "no such table"),
        ({"source": "elsewhere"}, "the source has no address"),
        ({"source": "postgres://u:secret@host/db"}, "a source is a name"),
        ({"password": "secret"}, "no secrets"),
        ({"mode": "incremental"}, "needs a cursor"),
        *(
            ({"mode": "incremental", "cursor": cursor, "overlap": overlap}, "before the cursor")
            for cursor, overlaps in (
                ("changed", ("-1 hours", "banana", "1 minute' --", "1 month -40 days")),
                ("seats", ("-5", "10 minutes", "1.5", "1; DROP TABLE planes")),
                ("tail", ("1",)),
            )
            for overlap in overlaps
        ),
    ):
        with pytest.raises((UserError, NotFound), match=why):
            pipes.create(owner.tenant, definition(PIPE | members))
    assert pipes.list_pipes(owner.tenant) == []
    (file,) = (addresses.pulse_home() / "sources" / owner.tenant.slug).iterdir()
    file.chmod(0o644)
    with pytest.raises(UserError, match="other users may read"):
        addresses.url(owner.tenant, SOURCE)


def test_the_number_of_pipes_of_a_tenant_is_limited(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE))
    with with_settings(PIPES__MAX_PIPES=1), pytest.raises(QuotaExceeded, match="may have 1 pipes"):
        pipes.create(owner.tenant, definition(PIPE | {"pipe": "second", "dataset": "more"}))
    assert [pipe.name for pipe in pipes.list_pipes(owner.tenant)] == ["planes"]
    assert "more" not in registry.list_slugs(owner.tenant, None, 9), "no dataset is left of it"


TYPES: list[tuple[str, str, Any]] = [
    # type, a value in SQL, what becomes of it
    ("smallint", "-32768", -32768),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("numeric(30, 10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    ("numeric", "1e-30", "0.000000000000000000000000000001"),
    ("numeric", "'NaN'", "NaN"),
    ("real", "0.1", 0.1),
    ("double precision", "1e300", 1e300),
    ("boolean", "true", True),
    ("text", "E'a\\n\"\\\\ü'", 'a\n"\\ü'),
    ("char(4)", "'a'", "a"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("jsonb", """'{"b": [1, null], "a": {"c": "x"}}'""", {"a": {"c": "x"}, "b": [1, None]}),
    ("bytea", "'\\x00ff10'", base64.b64encode(b"\x00\xff\x10").decode()),
    ("bytea", "decode(repeat('00', 100), 'hex')", base64.b64encode(bytes(100)).decode()),
    ("timestamptz", "'2026-03-29 02:30:00.123456+02'", "2026-03-29T00:30:00.123456+00:00"),
    ("timestamp", "'2026-03-29 02:30'", "2026-03-29T02:30:00"),
    ("date", "'2026-02-28'", "2026-02-28"),
    ("time", "'23:59:59.5'", "23:59:59.5"),
    ("interval", "'1 month 2 days 03:00'", "P1M2DT3H"),
    ("mood", "'glad'", "glad"),
    ("positive", "5", 5),
    ("int[]", "'{1,NULL,3}'", [1, None, 3]),
    ("text[]", "ARRAY['a', 'b,c']", ["a", "b,c"]),
    ("numeric[]", "'{1.50}'", ["1.50"]),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("int4range", "'[1,5)'", "[1,5)"),
]


def test_each_type_by_its_rule(owner: Owner, source: Any) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0)"
    )
    columns = ", ".join(f"c{n} {kind}" for n, (kind, _, _) in enumerate(TYPES))
    source.execute(f"CREATE TABLE kinds (a int, b text, {columns}, PRIMARY KEY (a, b))")
    values = ", ".join(value for _, value, _ in TYPES)
    source.execute(f"INSERT INTO kinds VALUES (1, 'x/y', {values})")
    source.execute("INSERT INTO kinds (a, b) VALUES (2, 'nulls')")
    source.execute("INSERT INTO kinds (a, b, c14) VALUES (3, 'never', 'infinity')")
    kinds = PIPE | {"pipe": "kinds", "table": "public.kinds", "dataset": "kinds"}
    pipes.create(owner.tenant, definition(kinds))
    bring(owner, "kinds")
    contents = latest(owner, "kinds")
    assert set(contents) == {'["1", "x/y"]', '["2", "nulls"]'}, "an infinite moment is a dead letter"
    assert owner.dead_letters()[0]["dataset"] == "kinds"
    row = contents['["1", "x/y"]']
    for number, (kind, _, expected) in enumerate(TYPES):
        value = row[f"c{number}"]
        value = json.loads(value) if kind == "jsonb" and isinstance(value, str) else value
        assert value == expected, kind
    assert set(contents['["2", "nulls"]']) == {"a", "b"}
    assert syncs.list_syncs(owner.tenant, "kinds")[0].refused == 1


def test_columns_have_the_names_that_queries_use(owner: Owner, source: Any) -> None:
    names = ["r", "t", "e", "s", "k", "d", "v", "c0", "there", "size", "planes"]
    source.execute(
        f"CREATE TABLE planes (tail text PRIMARY KEY, {', '.join(f'{name} real' for name in names)})"
    )
    source.execute(f"INSERT INTO planes VALUES ('N1', {', '.join(map(str, range(len(names))))})")
    table = tables.inspect(source, definition(PIPE))
    statements = [
        queries.events(table, table.parts[0], "planes", "2026-11-26T00:00:00Z", SQL("true")),
        queries.changed(table, ["text"], [("N1",)], "planes", "2026-11-26T00:00:00Z"),
    ]
    for query in statements:
        ((key, text),) = source.execute(query).fetchall()
        assert key == "N1"
        assert json.loads(text)["data"] == {"tail": "N1"} | dict(zip(names, range(len(names)), strict=True))


@pytest.mark.slow
def test_a_large_table_is_read_in_stretches_of_one_moment(
    owner: Owner, source: Any, at: AtPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute("CREATE TABLE planes (tail int, seats text, PRIMARY KEY (tail)) PARTITION BY RANGE (tail)")
    source.execute("CREATE TABLE low PARTITION OF planes FOR VALUES FROM (0) TO (3000)")
    source.execute("CREATE TABLE high PARTITION OF planes DEFAULT")
    source.execute("INSERT INTO planes SELECT n, repeat('x', 500) FROM generate_series(1, 4000) n")
    monkeypatch.setattr("pulse_pipelines.pipes.postgres.reading.LEAST_BLOCKS", 50)
    pipes.create(owner.tenant, definition(PIPE))
    at("pipe.begun", lambda: source.execute("INSERT INTO planes VALUES (5000, 'later')"))
    assert bring(owner).rows == 4000
    assert set(latest(owner)) == {str(n) for n in range(1, 4001)}


def test_a_requested_run_is_due_until_a_later_run_has_ended(owner: Owner, source: Any, at: AtPoint) -> None:
    """So one whose process is killed is begun again, though the pipe has no schedule."""

    def is_due() -> bool:
        return owner.tenant in [pipe.tenant for pipe in pipes.due()]

    source.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE))
    pipes.ask(owner.tenant, "planes")
    during: list[bool] = []
    at("pipe.loaded", lambda: during.append(is_due()))
    bring(owner)
    assert (during, is_due()) == ([True], False)
    at("pipe.begun", lambda: pipes.ask(owner.tenant, "planes"))
    bring(owner)
    assert is_due(), "the next one"
    pipes.pause(owner.tenant, "planes", paused=True)
    assert not is_due()


@pytest.mark.slow
def test_the_sensor_launches_a_due_pipe_as_an_asset_of_the_tenant(owner: Owner, source: Any) -> None:
    source.execute(TABLE)
    source.execute("INSERT INTO planes VALUES ('N1')")
    pipes.create(owner.tenant, definition(PIPE))
    assert owner.tenant not in [pipe.tenant for pipe in pipes.due()], "it has no schedule"
    pipes.ask(owner.tenant, "planes")
    loaded, slug = defs(), owner.tenant.slug
    with dg.DagsterInstance.ephemeral() as instance:

        def find_issues() -> Any:
            return pipes_due(dg.build_sensor_context(instance=instance, definitions=loaded))

        for request in find_issues().dynamic_partitions_requests:
            instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        (launched,) = [request for request in find_issues().run_requests if request.partition_key == slug]
        job = loaded.resolve_job_def("pipes")
        done = job.execute_in_process(
            instance=instance, partition_key=slug, asset_selection=launched.asset_selection
        )
        (materialization,) = done.asset_materializations_for_node("run_pipes")
        assert materialization.metadata["rows"].value == 1
    assert pipes.find(owner.tenant, "planes").asked_at is None
    ingest(owner)
    assert latest(owner) == {"N1": {"tail": "N1", "changed": latest(owner)["N1"]["changed"]}}
    pipes.pause(owner.tenant, "planes", paused=True)
    assert pipes.find(owner.tenant, "planes").state == "paused"
    pipes.delete(owner.tenant, "planes")
    assert pipes.list_pipes(owner.tenant) == []


def test_a_tenant_with_many_due_pipes_has_few_runs_queued(
    owner: Owner, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are launched as runs end; requested ones, and those that waited longest, are first."""
    names = [f"planes_{number}" for number in range(QUEUED_OF_TENANT + 2)]
    source.execute(TABLE)
    for name in names:
        pipes.create(owner.tenant, definition(PIPE | {"pipe": name, "dataset": name, "every": 3_600}))
    pipes.ask(owner.tenant, names[-1])
    loaded = defs()

    def launched(instance: dg.DagsterInstance) -> list[str]:
        result = pipes_due(dg.build_sensor_context(instance=instance, definitions=loaded))
        requests = (result.run_requests or []) if isinstance(result, dg.SensorResult) else []
        own = [request for request in requests if request.partition_key == owner.tenant.slug]
        for request in own:
            job = loaded.resolve_job_def("pipes")
            instance.create_run_for_job(job, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        return [request.tags[PIPE_TAG].partition("/")[2] for request in own]

    with dg.DagsterInstance.ephemeral() as instance:
        with monkeypatch.context() as full:
            full.setattr(sensor, "QUEUED", 0)
            assert launched(instance) == [], "runs of all tenants in this direction are queued"
        assert launched(instance) == [names[-1], *names[: QUEUED_OF_TENANT - 1]]
        assert launched(instance) == []
        for run, kind in zip(instance.get_runs(limit=2), ("SUCCESS", "FAILURE"), strict=True):
            ended = dg.DagsterEvent(f"PIPELINE_{kind}", job_name="pipes")
            instance.report_dagster_event(ended, run.run_id)
        assert launched(instance) == [names[2], names[3]], "and not the one whose run has just failed"


def test_a_run_that_ends_while_the_sensor_checks_is_not_launched_again(
    owner: Owner, source: Any, at: AtPoint
) -> None:
    source.execute(TABLE)
    pipes.create(owner.tenant, definition(PIPE))
    pipes.ask(owner.tenant, "planes")
    loaded, tag = defs(), f"{owner.tenant.slug}/planes"

    def requested(instance: dg.DagsterInstance) -> list[str]:
        result = pipes_due(dg.build_sensor_context(instance=instance, definitions=loaded))
        requests = (result.run_requests or []) if isinstance(result, dg.SensorResult) else []
        return [request.tags[PIPE_TAG] for request in requests if request.partition_key == owner.tenant.slug]

    with dg.DagsterInstance.ephemeral() as instance:
        assert requested(instance) == [tag]
        active = instance.create_run_for_job(
            loaded.resolve_job_def("pipes"), tags={PIPE_TAG: tag}, status=dg.DagsterRunStatus.STARTED
        )
        assert requested(instance) == []

        def end() -> None:
            bring(owner)
            ended = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job_name="pipes")
            instance.report_dagster_event(ended, active.run_id)

        at("pipes.looked", end)
        assert requested(instance) == []
        assert not pipes.find(owner.tenant, "planes").asked_at
        pipes.ask(owner.tenant, "planes")
        assert requested(instance) == [tag]
