"""`reconciled`, `file_health` and `freshness` fail when they should; the whole lake is checked by itself."""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import dagster as dg
import pytest
from pyspark.sql.connect.session import SparkSession
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner, plan_batch
from support.lake import changed, harmed, pointing_at, row, table, with_file

from chaos.inside import ingest_job
from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S
from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.checks import DESCRIPTIONS
from pulse_pipelines.defs.datasets.evaluation import evaluation
from pulse_pipelines.defs.datasets.lake_check import check_lake_hourly, evaluations
from pulse_pipelines.defs.datasets.partitions import asset_key
from pulse_pipelines.defs.ingest.sensor import run_config
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.checks import CheckResult, Inspection, Scope, freshness
from pulse_resources.settings import Settings, load_settings

Harm = Callable[[Owner], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def healthy(stack: Settings) -> Owner:
    owner = make_owner()
    for batch in ("a", "b"):
        owner.send(event(batch), event(f"{batch}2"), b"not json")
        ingest(owner)
    return owner


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets thresholds of the checks while a test runs."""

    def set_limits(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"PULSE_CHECKS__{name.upper()}", str(value))
        load_settings.cache_clear()

    yield set_limits
    monkeypatch.undo()
    load_settings.cache_clear()


# reconciled --------------------------------------------------------------------------------------

RECONCILED: dict[str, tuple[Harm, str]] = {
    "a row too many": (
        lambda owner: pointing_at(owner, with_file(owner, row(owner))),
        "the table has 5 rows, the ledger says 4: +1",
    ),
    "a row is gone": (
        lambda owner: pointing_at(owner, changed(owner, lambda table: table.delete("id = 'a2'"))),
        "the table has 3 rows, the ledger says 4: -1",
    ),
    "the ledger was changed": (
        lambda owner: harmed(owner, "landings", "UPDATE landings SET rows = rows + 2 WHERE {mine}"),
        "the table has 4 rows, the ledger says 8: -4",
    ),
    "the position was changed": (
        lambda owner: harmed(
            owner,
            "ingest_positions",
            "UPDATE ingest_positions SET settled_offset = 2 WHERE {mine} AND partition = 0",
        ),
        "partition 0 is settled up to 2, its ledger ends at 6",
    ),
    "ranges are gone": (
        lambda owner: harmed(owner, "ingest_ranges", "DELETE FROM ingest_ranges WHERE {mine}"),
        "partition 0 is settled up to 6, its ledger ends at 0",
    ),
}


@pytest.mark.parametrize("harm", RECONCILED)
def test_a_table_that_is_not_reconciled_is_reported(healthy: Owner, harm: str) -> None:
    how, says = RECONCILED[harm]
    with how(healthy):
        assert checks.run("reconciled", healthy.tenant, "orders").problems == [says]
    fine = checks.run("reconciled", healthy.tenant, "orders")
    assert (fine.problems, fine.numbers) == ([], {"rows_in_tables": 4, "rows_by_ledger": 4})


def test_a_proof_finds_an_error_that_counts_hide(healthy: Owner) -> None:
    forged = with_file(healthy, row(healthy, id="new", _offset=77))
    more = """UPDATE landings SET rows = rows + 1
        WHERE {mine} AND batch_id = (SELECT min(batch_id) FROM landings WHERE {mine})"""
    with pointing_at(healthy, forged), harmed(healthy, "landings", more):
        cheap = Inspection(Scope()).of("orders", [healthy.tenant])["reconciled"]
        proven = Inspection(Scope(), prove=None).of("orders", [healthy.tenant])["reconciled"]
    assert cheap.problems == []
    problems = [problem for _, problem in proven.problems]
    assert "1 unaccounted at partition 0, such as offsets 77" in problems
    assert proven.numbers["tenants_proven"] == 1


def test_delete_files_are_reported(stack: Settings) -> None:
    owner = make_owner()
    owner.send(*(event(name) for name in "abcd"))
    ingest(owner)
    spark = SparkSession.builder.remote(load_settings().spark.remote).getOrCreate()
    name = f"pulse.{owner.tenant.namespace}.orders"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {name} WHERE id = 'a'")
    assert checks.run("reconciled", owner.tenant, "orders").problems == [
        "the table has delete files, which Pulse never writes: rows are gone"
    ]
    health = checks.run("file_health", owner.tenant, "orders")
    assert health.problems == ["1 manifests of delete files, which Pulse never writes"]
    assert health.numbers["delete_manifests"] == 1


# file health -------------------------------------------------------------------------------------

HEALTH: dict[str, str] = {
    "max_snapshots": "2 snapshots, more than 1: expire them",
    "max_manifests": "2 manifests, more than 1: rewrite the manifests",
    "max_small_files_per_day": "1 days have more than 1 small files, 2026-11-19 has {files}: compact them",
}


@pytest.mark.parametrize("limit", HEALTH)
def test_a_table_in_bad_health_is_reported(healthy: Owner, limits: Callable[..., None], limit: str) -> None:
    files = len(list(table(healthy).scan().plan_files()))
    assert checks.run("file_health", healthy.tenant, "orders").problems == []
    limits(**{limit: 1})
    result = checks.run("file_health", healthy.tenant, "orders")
    assert result.problems == [HEALTH[limit].format(files=files)]
    assert not result.grave, "a warning: nothing is wrong with the rows"
    assert (result.numbers["small_files"], result.numbers["files"]) == (files, files)


def test_large_files_are_not_small(healthy: Owner, limits: Callable[..., None]) -> None:
    limits(max_small_files_per_day=1, small_file_bytes=10)
    assert checks.run("file_health", healthy.tenant, "orders").problems == []


# freshness ---------------------------------------------------------------------------------------


def fresh(owner: Owner, *, ask_broker: bool = True) -> CheckResult:
    return freshness.check_freshness(ask_broker=ask_broker).get(owner.tenant.tenant_id, CheckResult())


def test_events_that_wait_too_long_are_reported(owner: Owner, limits: Callable[..., None]) -> None:
    owner.send(event("a"))
    assert fresh(owner).problems == [], "it has only just come"
    limits(late_seconds=0.4, very_late_seconds=100_000)
    time.sleep(0.9)
    result = fresh(owner)
    waited = result.numbers["longest_wait_seconds"]
    assert waited in [0.8 * 2**step for step in range(12)], "in steps of 0.4 s, doubled"
    assert result.problems == [f"its oldest event that is not settled has waited {waited:.0f} s or more"]
    assert not result.grave
    assert not fresh(owner, ask_broker=False).problems, "Postgres knows nothing of them"
    limits(very_late_seconds=0.5)
    assert fresh(owner).grave

    batch = plan_batch([owner])
    time.sleep(0.6)
    assert fresh(owner, ask_broker=False).problems, "now it does"
    ingest_job().execute_in_process(run_config=run_config(batch, 1))
    limits(late_seconds=100_000)
    assert fresh(owner).problems == []


def test_a_stuck_batch_is_reported(owner: Owner) -> None:
    owner.send(event("a"))
    batch = plan_batch([owner])
    with superuser() as connection:
        stick = "UPDATE ingest_batches SET state = 'stuck', last_error = 'no disk' WHERE batch_id = %s"
        connection.execute(stick, [batch])
        try:
            result = fresh(owner, ask_broker=False)
        finally:
            connection.execute("UPDATE ingest_batches SET state = 'planned' WHERE batch_id = %s", [batch])
    assert result.problems == [f"batch {batch} is stuck: no disk; then run: pulse batch retry {batch}"]
    assert result.grave


def test_a_slow_batch_is_reported_until_it_is_over(owner: Owner) -> None:
    owner.send(event("a"))
    ingest(owner)
    slow = "UPDATE ingest_ranges SET oldest_received = settled_at - interval '700 s' WHERE {mine}"
    ago = slow.replace("SET", "SET settled_at = now() - interval '400 s',")
    with harmed(owner, "ingest_ranges", slow):
        result = fresh(owner)
    assert result.problems == ["the latest batch took 700 s from its oldest event to the table"]
    assert (result.grave, result.numbers["longest_batch_seconds"]) == (False, 700.0)
    with harmed(owner, "ingest_ranges", ago):
        assert fresh(owner).problems == []


def test_a_topic_that_cannot_be_ingested_is_reported(owner: Owner) -> None:
    ahead = (
        "UPDATE ingest_positions SET planned_offset = 9, settled_offset = 9 WHERE {mine} AND partition = 0"
    )
    with harmed(owner, "ingest_positions", ahead):
        result = fresh(owner)
    (problem,) = result.problems
    assert problem.startswith("partition 0: the topic ends at 0, before the position 9: it was recreated")
    assert problem.endswith(f"pulse tenant accept-loss {owner.tenant.slug}")
    assert result.grave


# in Dagster --------------------------------------------------------------------------------------


def own_dataset(owner: Owner, slug: str) -> None:
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")


def evaluations_of(result: dg.ExecuteInProcessResult, slug: str) -> dict[str, dg.AssetCheckEvaluation]:
    events = (e for e in result.all_events if e.event_type_value == "ASSET_CHECK_EVALUATION")
    data = [e.asset_check_evaluation_data for e in events]
    return {e.check_name: e for e in data if e.asset_key == asset_key(slug)}


def test_a_failed_check_stays_failed_while_others_are_ingested(stack: Settings) -> None:
    slug, broken, fine = f"d{uuid.uuid4().hex[:10]}", make_owner(), make_owner()
    for owner in (broken, fine):
        own_dataset(owner, slug)
    broken.send(event("a", dataset=slug))
    first = ingest(broken)

    def change_ledger(by: int) -> None:
        change = "UPDATE landings SET rows = rows + %s WHERE tenant_id = %s AND slug = %s AND batch_id = %s"
        with superuser() as connection:
            connection.execute(change, [by, broken.tenant.tenant_id, slug, first])

    with dg.DagsterInstance.ephemeral() as instance:

        def run(*owners: Owner) -> dg.AssetCheckEvaluation:
            config = run_config(plan_batch(owners), 1)
            return evaluations_of(
                ingest_job().execute_in_process(run_config=config, instance=instance), slug
            )["reconciled"]

        change_ledger(by=1)
        broken.send(event("b", dataset=slug))
        wrong = run(broken)
        assert not wrong.passed, "rows by the ledger are those of the whole table"
        fine.send(event("a", dataset=slug))
        still = run(fine)
        assert (still.passed, still.description) == (False, wrong.description)
        assert (still.metadata["tenants"].value, still.metadata["tenants_at_fault"].value) == (1, 1)
        change_ledger(by=-1)
        broken.send(event("c", dataset=slug))
        assert run(broken).passed


def families(*slugs: str) -> list[registry.Family]:
    return [family for family in registry.list_families() if family.slug in slugs]


def test_the_scheduled_check_begins_with_the_oldest_and_ends_in_time(owner: Owner) -> None:
    first, second = sorted(f"d{uuid.uuid4().hex[:10]}" for _ in range(2))
    for slug in (first, second):
        own_dataset(owner, slug)

    @dg.op
    def log(context: dg.OpExecutionContext) -> None:
        summaries = Inspection(Scope()).of(first, [owner.tenant])
        for name, summary in summaries.items():
            context.log_event(evaluation(first, name, summary))  # type: ignore[arg-type]

    @dg.job
    def before() -> None:
        log()

    with dg.DagsterInstance.ephemeral() as instance:
        before.execute_in_process(instance=instance)
        known = families(first, second)
        order = [e.asset_key.path[-1] for e in evaluations(instance, known, time.monotonic() + PATIENCE_S)]
        assert order == [second] * len(checks.CHECKS) + [first] * len(checks.CHECKS)
        assert list(evaluations(instance, known, time.monotonic() - 1)) == []


def test_the_job_checks_everything_and_is_scheduled(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    from pulse_pipelines.definitions import defs

    slug = f"d{uuid.uuid4().hex[:10]}"
    own_dataset(owner, slug)
    mine = families(slug)
    monkeypatch.setattr(registry, "list_families", lambda: mine)
    everything = defs()
    assert check_lake_hourly.default_status is dg.DefaultScheduleStatus.RUNNING
    assert check_lake_hourly in (everything.schedules or ())
    with dg.DagsterInstance.ephemeral() as instance:
        run = everything.get_job_def("check_lake").execute_in_process(instance=instance)
    evaluated = evaluations_of(run, slug)
    assert {name: e.passed for name, e in evaluated.items()} == dict.fromkeys(checks.CHECKS, True)
    assert {e.metadata["scope"].value for e in evaluated.values()} == {"whole tables"}
    keys = everything.resolve_asset_graph().asset_check_keys
    assert {key.name for key in keys if key.asset_key == asset_key(slug)} == set(DESCRIPTIONS)
