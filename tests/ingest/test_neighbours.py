"""One tenant's table, file, topic or schema is harmed: the run does its work for the neighbours all the same.

The harmed one is named, and left alone for a while; once it is mended, all is done for it, too.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import pytest
from pyspark.sql.connect.session import SparkSession
from support.curated import Zone, make_zone, visit
from support.ingest import Owner, event, ingest, make_owner, plan_batch, run_batch
from support.lake import DAY, damaged_schema, location, pointing_at, put, spark, table, without_object
from typer.testing import CliRunner

from chaos.surroundings import superuser, with_settings
from pulse_api.cli import app
from pulse_pipelines import registry
from pulse_pipelines.curated import compute, rollups
from pulse_pipelines.curated.due import Due, due_days
from pulse_pipelines.curated.run import curate
from pulse_pipelines.definitions import defs
from pulse_pipelines.defs.alerts.checks import failing_checks
from pulse_pipelines.defs.alerts.runs import failed_runs
from pulse_pipelines.defs.curated.sensor import curated_due
from pulse_pipelines.defs.datasets.evaluation import evaluation
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.ingest import (
    attempts,
    dead_letter_topic,
    dedup,
    drain,
    land,
    late_dead_letters,
    settle,
    staging,
)
from pulse_pipelines.maintenance.policy import needs
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.monitoring import issues
from pulse_pipelines.monitoring.checks import CHECKS, Inspection, Scope
from pulse_pipelines.monitoring.issues import Issue, Kind
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.registry import failed_work
from pulse_pipelines.registry.failed_work import Failed, Standing, Work
from pulse_resources import kafka, object_store, outages, spark as spark_resource
from pulse_resources.errors import Transient

EARLIER = date(2026, 11, 18)


def failed(owner: Owner) -> list[Standing]:
    return [failure for failure in failed_work.standing() if failure.work.tenant == owner.tenant]


def alerts(owner: Owner) -> list[Issue]:
    """What is told of work that failed for a tenant."""
    open_issues = issues.find_issues({}, 0)[0].issues
    return [f for f in open_issues if f.kind is Kind.WORK_FAILED and f.about["tenant"] == owner.tenant.slug]


def time_is_over(owner: Owner) -> None:
    """What failed is due to be tried again."""
    with superuser() as connection:
        over = "UPDATE failures SET retry_at = now() WHERE tenant_id = %s"
        connection.execute(over, [owner.tenant.tenant_id])


@pytest.fixture(params=[3])
def zones(
    request: pytest.FixtureRequest, spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Zone]]:
    """Three tenants, or as many as a test says, with events of two days, which are due at once."""
    with with_settings(CURATED__QUIET_SECONDS=0):
        zones = [make_zone(spark_session, tmp_path_factory.mktemp("rollups")) for _ in range(request.param)]
        for zone in zones:
            zone.owner.send(*[visit(f"{day}T10:00:00", kind="a", who="ann") for day in (EARLIER, DAY)])
        ingest(*(zone.owner for zone in zones))
        yield zones


def test_repeated_failures_double_the_wait_and_raise_an_alert(owner: Owner) -> None:
    dataset = registry.find_dataset(owner.tenant, "orders")
    work = Work("curate", owner.tenant, "rollups", dataset.dataset_id, "orders", DAY)
    waits = []
    for _ in range(4):
        failed_work.note([Failed.by(work, ValueError("a\0b\ud800"))] * 2, first_s=60, most_s=200)
        (standing,) = failed(owner)
        waits.append((standing.retry_at - standing.last_at).total_seconds())
        assert (standing.work, standing.count, standing.backing_off) == (work, len(waits), True)
    assert waits == [60, 120, 200, 200]
    (alert,) = alerts(owner)
    place = f"tenant {owner.tenant.slug}, dataset orders, {DAY}"
    assert alert.summary == f"curate of {place} failed 4 times in a row: ValueError: ab?"
    assert alert.severity == "error"
    failed_work.note([Failed.by(replace(work, dataset_id=uuid.uuid4()), ValueError())], first_s=0, most_s=0)
    assert len(failed(owner)) == 1, "of a dataset that was deleted meanwhile"
    failed_work.forget(work)
    assert failed(owner) == alerts(owner) == []


# curate ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_damaged_tables_cost_no_neighbour_its_rollups(zones: list[Zone]) -> None:
    damaged, bad_day, good = zones
    loaded = defs()
    with superuser() as connection:
        (since,) = connection.execute("SELECT (now() - interval '1 minute')::text").fetchone() or ("",)
    planned = table(bad_day.owner, "visits").scan().plan_files()
    first_day = min((task.file for task in planned), key=lambda file: file.partition[0])
    job, config = (
        loaded.resolve_job_def("curate"),
        {"ops": {"compute_what_is_due": {"config": {"since": since}}}},
    )
    with dg.DagsterInstance.ephemeral() as instance:

        def curate_all() -> dg.ExecuteInProcessResult:
            return job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)

        def sensor(cursor: str | None) -> dg.SensorResult:
            context = dg.build_sensor_context(instance=instance, definitions=loaded, cursor=cursor)
            result = curated_due(context)
            assert isinstance(result, dg.SensorResult)
            return result

        with ExitStack() as harm:
            harm.enter_context(without_object(location(damaged.owner, "visits"), b'{"cut off'))
            harm.enter_context(without_object(first_day.file_path, bytes(first_day.file_size_in_bytes)))
            result = curate_all()
            (failure,) = [e.step_failure_data.error for e in result.all_events if e.is_step_failure]
            assert f"tenant {damaged.owner.tenant.slug}, dataset visits" in str(failure)
            assert good.served("daily").keys() == good.table("behaviour").keys() == {EARLIER, DAY}
            assert bad_day.served("daily").keys() == {DAY}
            (of_table,), (of_day,) = failed(damaged.owner), failed(bad_day.owner)
            assert (of_table.work.slug, of_table.work.day, of_table.count) == ("visits", None, 1)
            assert (of_day.work.slug, of_day.work.day, of_day.count) == ("visits", EARLIER, 1)
            (alert,) = alerts(bad_day.owner)
            about = {
                "job": "curate",
                "tenant": bad_day.owner.tenant.slug,
                "dataset": "visits",
                "days": str(EARLIER),
            }
            assert (alert.about, alert.severity) == (about, "warning")
            assert curate_all().success, "what failed is left alone for a while"
            assert [standing.count for standing in failed(damaged.owner)] == [1]
        with with_settings(CURATED__RETRY_SECONDS=0):  # else no run begins right after one that failed
            cursor = json.loads(sensor(None).cursor or "") | {"since": "2999-01-01T00:00:00+00:00"}
            time_is_over(damaged.owner)
            time_is_over(bad_day.owner)
            answer = sensor(json.dumps(cursor))
            assert answer.run_requests, "what failed is found however far the cursor has moved"
            assert json.loads(answer.cursor or "")["since"] == cursor["since"]
        assert curate_all().success
    assert damaged.served("daily").keys() == bad_day.served("behaviour").keys() == {EARLIER, DAY}
    assert failed(damaged.owner) == failed(bad_day.owner) == []


@pytest.mark.slow
def test_a_tenant_whose_rows_end_spark_is_computed_alone_and_last(
    zones: list[Zone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day whose rows end Spark: what was asked with it is suspected, and computed by the next run."""
    culprit, *neighbours = zones
    ask = compute._ask

    def ask_or_end(session: SparkSession, rollup: Any, parts: Any) -> Any:
        if any(part.tenant == culprit.owner.tenant for part in parts):
            session.stop()
        return ask(session, rollup, parts)

    def due() -> list[Due]:
        mine = {zone.owner.tenant for zone in zones}
        all_due = due_days([], datetime.min.replace(tzinfo=UTC)).days
        return [d for d in all_due if d.tenant in mine and d.dataset.slug == "visits" and d.ready]

    monkeypatch.setattr(compute, "_ask", ask_or_end)
    for _ in range(4):
        with spark_resource.session() as session:
            curate(session, due())
        for zone in zones:
            time_is_over(zone.owner)
    for zone in neighbours:
        assert zone.served("daily").keys() == zone.served("behaviour").keys() == {EARLIER, DAY}
        assert failed(zone.owner) == []
    assert {failure.work.day for failure in failed(culprit.owner)} == {EARLIER, DAY}
    monkeypatch.undo()
    assert not culprit.curate().failures
    assert failed(culprit.owner) == []


@pytest.mark.parametrize("zones", [2], indirect=True)
def test_a_schema_that_cannot_be_read_stops_its_own_tenant_alone(zones: list[Zone]) -> None:
    harmed, healthy = zones
    with damaged_schema(harmed.owner):
        assert "visits" in rollups.slugs_with_actor(["visits", "orders"]), "of others"
        assert defs().resolve_job_def("curate")
        due = [*harmed.due(), *healthy.due()]
        assert {d.tenant for d in due} == {harmed.owner.tenant, healthy.owner.tenant}
        done = curate(harmed.session, due)
        assert {failure.work.tenant for failure in done.failures} == {harmed.owner.tenant}
        assert healthy.served("daily").keys() == healthy.served("behaviour").keys() == {EARLIER, DAY}
    time_is_over(harmed.owner)
    assert not harmed.curate().failures
    assert harmed.served("daily").keys() == {EARLIER, DAY}
    assert failed(harmed.owner) == []


# upkeep ------------------------------------------------------------------------------------------


def test_a_damaged_table_costs_no_neighbour_its_upkeep(stack: object) -> None:
    harmed, healthy = make_owner(), make_owner()
    eager = {"UPKEEP__MERGE_FILES": 2, "UPKEEP__MERGE_MINUTES": 0}
    with with_settings(**eager):
        for number in range(2):
            for owner in (harmed, healthy):
                owner.send(event(f"a{number}"))
            ingest(harmed, healthy)

        def needed(owner: Owner, **how: bool) -> list[Task]:
            return [need.task for need in needs(owner.tenant.slug, **how)]

        def do() -> dict[tuple[str, str], str]:
            mine = [*needs(harmed.tenant.slug), *needs(healthy.tenant.slug)]
            some = [need for need in mine if need.task in (Task.MERGE, Task.ORPHANS)]
            done = run(spark, some, run_id="test", seconds=600)
            return {(result.tenant, result.task): result.outcome for result in done}

        with without_object(location(harmed), b'{"cut off'):
            assert needed(harmed)[0] is Task.MERGE
            outcomes = do()
            assert outcomes[harmed.tenant.slug, "merge"] == "failed"
            assert outcomes[healthy.tenant.slug, "merge"] == outcomes[healthy.tenant.slug, "sweep"] == "done"
            assert Task.MERGE not in needed(harmed, patient=True), "it is not tried again yet"
            assert needed(harmed)[-1] is Task.MERGE, "and by hand last"
            (standing,) = failed(harmed)
            assert (standing.work.slug, standing.work.day) == ("orders", DAY)
            (alert,) = alerts(harmed)
            assert (alert.about["dataset"], alert.about["days"]) == ("orders", str(DAY))
            assert "merge" in alert.summary
            assert alert.fix.endswith(f"pulse backfill {harmed.tenant.slug} orders --from {DAY}")
            failed_work.forget(standing.work)  # else it comes last, after a task that is of no day
            with dg.DagsterInstance.ephemeral() as instance:
                only = {"run_maintenance": {"config": {"tenant": harmed.tenant.slug}}}
                upkeep = defs().resolve_job_def("upkeep")
                upkeep.execute_in_process(run_config={"ops": only}, instance=instance, raise_on_error=False)
                (run_failed,) = failed_runs(instance, [])
            place = f"of tenant {harmed.tenant.slug}, dataset orders, day {DAY}: "
            assert place in run_failed.summary, "before the cause, which may be a page"
        assert do()[harmed.tenant.slug, "merge"] == "done"
    assert failed(harmed) == []


# ingest ------------------------------------------------------------------------------------------


def test_a_table_damaged_between_land_and_settle_stops_only_its_own_tenant(
    stack: object,
) -> None:
    harmed, healthy = make_owner(), make_owner()
    for owner in (harmed, healthy):
        owner.send(event("a"))
    batch, broken = (
        plan_batch([harmed, healthy]),
        f"{table(harmed).location()}/metadata/00009-x.metadata.json",
    )
    with attempts.hold_attempt(batch, 1) as plan, staging.tables(plan):
        landed = land.land(spark(), dedup.gate(drain.drain(spark(), plan, 2)), 2)
        put(object_store.key(broken), b"{")
        with pointing_at(harmed, broken):
            settled = settle.settle(*late_dead_letters.stage(landed))
    assert [failure.tenant_id for failure in settled.failures] == [harmed.tenant.tenant_id]
    assert [row["id"] for row in healthy.rows()] == ["a"]
    for number in (1, 2):
        attempts.next_attempt(batch, number, "for the test")
    run_batch(batch, 3)  # from here on every tenant has Spark jobs of its own
    assert [row["id"] for row in harmed.rows()] == ["a"]


def test_a_deleted_dead_letter_topic_does_not_stop_those_of_others(
    stack: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = sorted((make_owner(), make_owner()), key=lambda owner: owner.tenant.slug)
    for owner in (first, second):
        owner.send(b"not json")
    topic = first.tenant.dead_letter_topic
    kafka.admin().delete_topics([topic])[topic].result()
    monkeypatch.setattr(dead_letter_topic, "FLUSH_S", 10.0)
    ingest(first, second)
    assert second.dead_letters()[0]["published_at"]
    with superuser() as connection:
        again = "UPDATE dead_letters SET published_at = NULL WHERE tenant_id = %s"
        connection.execute(again, [second.tenant.tenant_id])
        owed = "INSERT INTO dead_letter_outbox VALUES (%s, 'some-batch', now() - interval '1 minute')"
        connection.execute(owed, [second.tenant.tenant_id])
    config = {"tenants": [first.tenant.slug, second.tenant.slug]}
    job = defs().resolve_job_def("publish_dead_letters")

    def publish() -> dg.ExecuteInProcessResult:
        run_config = {"ops": {"publish_overdue": {"config": config}}}
        return job.execute_in_process(run_config=run_config, raise_on_error=False)

    result = publish()
    (failure,) = [e.step_failure_data.error for e in result.all_events if e.is_step_failure]
    assert f"dead letters of tenant {first.tenant.slug}" in str(failure)
    assert second.dead_letters()[0]["published_at"]
    assert [standing.work.job for standing in failed(first)] == ["publish_dead_letters"]
    assert failed(second) == []
    kafka.create_topics([topic])
    assert publish().success
    assert failed(first) == []


# checks ------------------------------------------------------------------------------------------


def test_a_damaged_manifest_is_a_finding_of_its_own_table(stack: object) -> None:
    harmed, healthy = make_owner(), make_owner()
    for owner in (harmed, healthy):
        owner.send(event("a"))
    ingest(harmed, healthy)
    snapshot = table(harmed).current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(table(harmed).io)
    with without_object(manifest.manifest_path, b"Obj\x01 and no more"):
        outcomes = Inspection(Scope(), prove=None).of("orders", [harmed.tenant, healthy.tenant])
        assert outcomes["tenant_isolation"].results[harmed.tenant.slug].problems
        assert "unreadable" in {problem.kind for problem in reconcile_tenant(harmed.tenant).problems}
        with dg.DagsterInstance.ephemeral() as instance:
            result = evaluation("orders", "tenant_isolation", outcomes["tenant_isolation"])
            instance.report_runless_asset_event(result)
            (issue,) = failing_checks(instance, {result.asset_check_key}.__contains__)
        assert issue.about["tenants"] == harmed.tenant.slug
    assert not any(outcomes[name].results[healthy.tenant.slug].problems for name in CHECKS)


@pytest.mark.parametrize("zones", [2], indirect=True)
def test_nothing_is_computed_from_a_truncated_manifest(zones: list[Zone]) -> None:
    """Spark reads the rest of a truncated manifest without an error: the day would lack events."""
    (zone, healthy), owner = zones, zones[0].owner
    assert not zone.curate().failures
    served = zone.served("daily")
    visits = table(owner, "visits")
    snapshot = visits.current_snapshot()
    assert snapshot
    (manifest,) = snapshot.manifests(visits.io)
    with object_store.file_system().open_input_file(object_store.key(manifest.manifest_path)) as source:
        content = source.read()
    with without_object(manifest.manifest_path, content[: len(content) * 97 // 100]):
        owner.send(visit(f"{DAY}T11:00:00", kind="b", who="bob"))
        ingest(owner)
        (failure,) = curate(zone.session, [*zone.due(), *healthy.due()]).failures
        assert healthy.served("daily").keys() == healthy.table("behaviour").keys() == {EARLIER, DAY}
        assert (failure.work.tenant, failure.work.slug) == (owner.tenant, "visits")
        assert "damaged" in failure.error
        assert zone.served("daily") == served
        where = [owner.tenant.slug, "visits"]
        for command in (
            ["preview", *where],
            ["backfill", *where, "--from", str(DAY)],
            ["erase", where[0], "--dataset", where[1], "--where", "event_id=z", "--yes"],
        ):
            done = CliRunner().invoke(app, command)
            assert isinstance(done.exception, SystemExit), (command, done.exception)
            assert "damaged" in done.output, command


def test_an_outage_is_not_recorded_as_a_failure_of_a_tenant(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    with with_settings(OBJECT_STORE__ENDPOINT="http://127.0.0.1:1"):
        object_store.file_system.cache_clear()
        try:
            with pytest.raises(Transient, match="the object store does not answer"):
                outages.check()
            with pytest.raises(Transient, match="the object store does not answer"):
                curate(
                    spark(),
                    [
                        d
                        for d in due_days([], datetime.min.replace(tzinfo=UTC)).days
                        if d.tenant == owner.tenant
                    ],
                )
        finally:
            object_store.file_system.cache_clear()
    assert failed(owner) == []
