"""The checks of tables pass on a healthy one, and fail in every way that they claim to see."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IntegerType, LongType, StringType
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner, plan_batch
from support.lake import changed, harmed, location, pointing_at, row, table, with_file, without_object

from chaos.inside import ingest_job
from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.defs.datasets.partitions import asset_key, partitions, tenant_partitions
from pulse_pipelines.defs.ingest.sensor import run_config
from pulse_pipelines.monitoring import checks
from pulse_pipelines.monitoring.checks import conformance
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.iceberg_schema import PARTITIONED_BY_DAY, table_schema
from pulse_resources import iceberg, postgres
from pulse_resources.settings import Settings

ISOLATION, CONFORMANCE = "tenant_isolation", "schema_conformance"


@dataclass(frozen=True)
class Case:
    owner: Owner
    batch: str


@pytest.fixture(scope="module")
def healthy(stack: Settings) -> Case:
    owner = make_owner()
    owner.send(event("a", amount=1.5, other=[1]), event("b", address={"zip": "1", "no": 2}), event("c"))
    return Case(owner, ingest(owner))


def problems(name: str, owner: Owner, batch: str | None = None) -> str:
    """Everything that a check has to say against `orders`, as one text; empty when it passes."""
    return "\n".join(checks.run(name, owner.tenant, "orders", batch).problems)


def test_a_healthy_table_passes(healthy: Case) -> None:
    for batch in (None, healthy.batch):
        isolation = checks.run(ISOLATION, healthy.owner.tenant, "orders", batch)
        files = len(data_files(healthy.owner))
        count = {"rows": 3, "foreign_rows": 0, "files": files, "files_read": files, "stray_files": 0}
        assert (isolation.problems, isolation.numbers) == ([], count)
        conformance = checks.run(CONFORMANCE, healthy.owner.tenant, "orders", batch)
        assert (conformance.problems, conformance.numbers) == ([], {"rows_validated": 3, "invalid_rows": 0})


@pytest.fixture(scope="module")
def empty(stack: Settings) -> Owner:
    return make_owner()


def test_an_empty_table_passes(empty: Owner) -> None:
    assert (problems(ISOLATION, empty), problems(CONFORMANCE, empty)) == ("", "")


# rows and files ----------------------------------------------------------------------------------

NO_VALUE = "partition 0, offset 77: at /data/country it does not follow the schema"
"""What the row says is not in it: findings are kept where no erasure reaches."""
ROWS: dict[str, tuple[str, dict[str, object], str]] = {
    "of another tenant": (ISOLATION, {"tenant_id": str(uuid.uuid4())}, "1 rows belong to another tenant"),
    "of no tenant": (ISOLATION, {"tenant_id": None}, "1 rows belong to another tenant"),
    "of another dataset": (ISOLATION, {"dataset_id": str(uuid.uuid4())}, "1 rows belong to another tenant"),
    "of no dataset": (ISOLATION, {"dataset_id": None}, "1 rows belong to another tenant"),
    "without a required field": (CONFORMANCE, {"country": None, "_offset": 77}, NO_VALUE),
}


@pytest.mark.parametrize("defect", ROWS)
def test_a_wrong_row_is_reported(healthy: Case, defect: str) -> None:
    name, values, says = ROWS[defect]
    owner = healthy.owner
    with pointing_at(owner, with_file(owner, row(owner, **values), batch="forged")):
        assert says in problems(name, owner)
        assert says in problems(name, owner, "forged"), "the batch that landed it"
        assert not problems(name, owner, healthy.batch), "another batch, whose files are as they were"
    assert not problems(name, owner)


@pytest.mark.parametrize("folder", ["{location}2", "s3://pulse/elsewhere", "s3://pulse/iceberg"])
def test_a_file_outside_the_tenant_s_prefix_is_reported(healthy: Case, folder: str) -> None:
    owner = healthy.owner
    where = folder.format(location=table(owner).location())
    with pointing_at(owner, with_file(owner, row(owner), folder=where)):
        result = checks.run(ISOLATION, owner.tenant, "orders")
    (problem,) = result.problems
    assert problem.startswith(f"a data file is outside the tenant's prefix: {where}/data/")
    assert (result.numbers["stray_files"], result.numbers["files"]) == (1, len(data_files(owner)) + 1)


def test_a_file_without_the_owner_s_column_is_reported(healthy: Case) -> None:
    owner = healthy.owner
    with pointing_at(owner, with_file(owner, row(owner).drop_columns(["tenant_id"]))):
        assert problems(ISOLATION, owner, "forged")
        assert problems(ISOLATION, owner)


def test_the_sample_is_drawn_from_all_files_and_row_groups(
    healthy: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong row in the last row group of the largest file is among the rows, if all are drawn."""
    owner = healthy.owner
    rows = pa.concat_tables([*[row(owner)] * 50, row(owner, country=None, _offset=77)])
    monkeypatch.setattr(parquet_files, "ROW_GROUP", 10)
    with pointing_at(owner, with_file(owner, rows)):
        assert NO_VALUE in problems(CONFORMANCE, owner)
        monkeypatch.setattr(conformance, "SAMPLE_ROWS", 26)
        drawn = [checks.run(CONFORMANCE, owner.tenant, "orders") for _ in range(24)]
    assert {result.numbers["rows_validated"] for result in drawn} == {26}
    assert {result.numbers["invalid_rows"] for result in drawn} == {0, 1}


# what is gone, damaged or elsewhere --------------------------------------------------------------

Harm = Callable[[Owner], AbstractContextManager[None]]


def data_files(owner: Owner) -> list[str]:
    return [task.file.file_path for task in table(owner).scan().plan_files()]


def manifest_list(owner: Owner) -> str:
    snapshot = table(owner).current_snapshot()
    assert snapshot is not None
    return snapshot.manifest_list


UNREADABLE: dict[str, Harm] = {
    "the table is not in the catalog": lambda owner: harmed(
        owner, "iceberg_catalog.iceberg_tables", "DELETE FROM iceberg_catalog.iceberg_tables WHERE {mine}"
    ),
    "the table is in another catalog": lambda owner: harmed(
        owner,
        "iceberg_catalog.iceberg_tables",
        "UPDATE iceberg_catalog.iceberg_tables SET catalog_name = 'other' WHERE {mine}",
    ),
    "the metadata file is gone": lambda owner: pointing_at(owner, "s3://pulse/gone.metadata.json"),
    "the metadata file is damaged": lambda owner: without_object(location(owner), b"{"),
    "the manifest list is gone": lambda owner: without_object(manifest_list(owner)),
    "a data file is gone": lambda owner: without_object(data_files(owner)[0]),
    "a data file is damaged": lambda owner: without_object(data_files(owner)[0], b"PAR1 not at all"),
}


@pytest.mark.parametrize("name", [ISOLATION, CONFORMANCE])
@pytest.mark.parametrize("harm", UNREADABLE)
def test_a_table_that_cannot_be_read_is_a_finding(healthy: Case, harm: str, name: str) -> None:
    with UNREADABLE[harm](healthy.owner):
        assert problems(name, healthy.owner)
    assert not problems(name, healthy.owner)


def test_a_table_at_another_location_is_reported(healthy: Case) -> None:
    owner = healthy.owner
    dataset = registry.find_dataset(owner.tenant, "orders")
    place = f"s3://pulse/iceberg/{owner.tenant.namespace}/elsewhere"
    metadata, _ = iceberg.write_new_table(place, table_schema(dataset.columns), PARTITIONED_BY_DAY, {})
    with pointing_at(owner, metadata):
        assert f"the table is at {place}, not at" in problems(ISOLATION, owner)
        assert not problems(CONFORMANCE, owner), "its columns are right, all the same"


# row-level security ------------------------------------------------------------------------------


@contextmanager
def ddl(harm: str, repair: str) -> Iterator[None]:
    with superuser() as connection:
        connection.execute(harm)
        try:
            yield
        finally:
            connection.execute(repair)


def qualified(name: str) -> str:
    return f"iceberg_catalog.{name}" if name.startswith("iceberg_") else f"public.{name}"


SEEN = ("pdm_datasets", "iceberg_tables")
"""Tables in which the check looks for its dataset as a stranger."""
OTHERS = [name for name in checks.RLS_TABLES if name not in SEEN]


@pytest.mark.parametrize("names", [OTHERS, OTHERS[:1], *([name] for name in SEEN)])
@pytest.mark.parametrize(("harm", "repair"), [("NO FORCE", "FORCE"), ("DISABLE", "ENABLE")])
def test_row_level_security_that_is_not_in_force_is_reported(
    empty: Owner, names: Sequence[str], harm: str, repair: str
) -> None:
    with ExitStack() as harmed_tables:
        for name in names:
            alter = f"ALTER TABLE {qualified(name)} {{}} ROW LEVEL SECURITY"
            harmed_tables.enter_context(ddl(alter.format(harm), alter.format(repair)))
        lines = problems(ISOLATION, empty).splitlines()
    expected = {f"row-level security is not forced on {name}" for name in names}
    if harm == "DISABLE" and {*SEEN} & {*names}:
        expected.add("another tenant's session sees this dataset")
    assert {*lines} == expected
    assert not problems(ISOLATION, empty)


@pytest.mark.parametrize("name", ["pdm_datasets", "iceberg_tables"])
def test_a_policy_that_lets_strangers_in_is_reported(empty: Owner, name: str) -> None:
    leak = f"CREATE POLICY leak ON {qualified(name)} FOR SELECT TO pulse_api USING (true)"
    with ddl(leak, f"DROP POLICY leak ON {qualified(name)}"):
        assert problems(ISOLATION, empty) == "another tenant's session sees this dataset"
    assert not problems(ISOLATION, empty)


# columns -----------------------------------------------------------------------------------------


def evolved(change: Callable[[UpdateSchema], object], owner: Owner, slug: str = "orders") -> str:
    """Metadata of the table after a change of its schema."""

    def evolve(target: Table) -> None:
        with target.update_schema(allow_incompatible_changes=True) as update:
            change(update)

    return changed(owner, evolve, slug)


COLUMNS: dict[str, tuple[Callable[[UpdateSchema], object], str]] = {
    "added": (
        lambda update: update.add_column("smuggled", StringType()),
        "column smuggled is string, the schema says nothing of it",
    ),
    "dropped": (
        lambda update: update.delete_column("amount"),
        "column amount is missing, the schema says double",
    ),
    "renamed": (
        lambda update: update.rename_column("amount", "total"),
        "column amount is missing, the schema says double",
    ),
    "retyped": (
        lambda update: update.update_column("schema_version", LongType()),
        "column schema_version is long required, the schema says int required",
    ),
    "no longer required": (
        lambda update: update.make_column_optional("tenant_id"),
        "column tenant_id is string, the schema says string required",
    ),
    "nested": (
        lambda update: update.add_column(("address", "smuggled"), IntegerType()),
        "column address is struct<",
    ),
}


@pytest.mark.parametrize("how", COLUMNS)
def test_a_column_changed_outside_pulse_is_reported(healthy: Case, how: str) -> None:
    change, says = COLUMNS[how]
    with pointing_at(healthy.owner, evolved(change, healthy.owner)):
        assert says in problems(CONFORMANCE, healthy.owner)
        assert says in problems(CONFORMANCE, healthy.owner, healthy.batch), "whatever the batch touched"
    assert not problems(CONFORMANCE, healthy.owner)


# in Dagster --------------------------------------------------------------------------------------


def faults(evaluation: dg.AssetCheckEvaluation) -> list[tuple[str, str, str]]:
    """Tenant, problem and severity, as the table in the evaluation's metadata has them."""
    table = evaluation.metadata["at_fault"]
    assert isinstance(table, dg.TableMetadataValue)
    return [(str(r.data["tenant"]), str(r.data["problem"]), str(r.data["severity"])) for r in table.records]


def on_demand(slug: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Run the checks of a dataset's asset as a person in the Dagster UI does."""
    from pulse_pipelines.definitions import defs

    selection = dg.AssetSelection.checks_for_assets(asset_key(slug))
    job = dg.Definitions.merge(defs(), dg.Definitions(jobs=[dg.define_asset_job("look", selection)]))
    with dg.DagsterInstance.ephemeral() as instance:
        result = job.resolve_job_def("look").execute_in_process(instance=instance)
        assert result.success, "a check that fails is no run that fails"
        return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_checks_on_demand(stack: Settings) -> None:
    owner, slug = make_owner(), f"d{uuid.uuid4().hex[:10]}"  # an asset that nobody else has
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    healthy = on_demand(slug)
    assert healthy.keys() == set(checks.CHECKS)
    assert all(evaluation.passed for evaluation in healthy.values())
    assert {evaluation.metadata["tenants"].value for evaluation in healthy.values()} == {1}
    assert {evaluation.metadata["scope"].value for evaluation in healthy.values()} == {"whole tables"}

    force = "ALTER TABLE usage {} ROW LEVEL SECURITY"
    smuggled = evolved(lambda update: update.add_column("smuggled", StringType()), owner, slug)
    with ddl(force.format("NO FORCE"), force.format("FORCE")), pointing_at(owner, smuggled, slug):
        evaluations = on_demand(slug)
    for name, problem in (
        (ISOLATION, "row-level security is not forced on usage"),
        (CONFORMANCE, "column smuggled is string, the schema says nothing of it"),
    ):
        says = f"tenant {owner.tenant.slug}: {problem}"
        evaluation = evaluations[name]
        assert (evaluation.passed, evaluation.severity, evaluation.description) == (
            False,
            dg.AssetCheckSeverity.ERROR,
            says,
        )
        assert faults(evaluation) == [(owner.tenant.slug, problem, "error")]
        assert evaluation.metadata["seconds"].value > 0
    assert all(evaluation.passed for evaluation in on_demand(slug).values())


def test_a_batch_reports_the_days_and_checks_of_its_datasets(stack: Settings) -> None:
    owner, other = make_owner(), make_owner()
    late = event("late").replace(b"2026-11-19T10", b"2026-11-17T10")
    owner.send(event("a"), event("b"), event("a"), late, b"not json")
    other.send(event("a"))
    batch = plan_batch([owner, other])
    with dg.DagsterInstance.ephemeral() as instance:
        result = ingest_job().execute_in_process(run_config=run_config(batch, 1), instance=instance)
        cells = [record.asset_materialization for record in logged(instance, result.run_id, MATERIALIZED)]
        evaluations = [
            record.dagster_event.asset_check_evaluation_data
            for record in logged(instance, result.run_id, EVALUATED)
        ]
        assert set(instance.get_dynamic_partitions(str(tenant_partitions("orders").name))) == {
            owner.tenant.slug,
            other.tenant.slug,
        }
    assert {cell.asset_key for cell in cells} == {asset_key("orders")}
    reported: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in cells:
        key = partitions("orders", None).get_partition_key_from_str(cell.partition)
        at = key.keys_by_dimension
        reported[at["tenant"], at["day"]] = {name: value.value for name, value in cell.metadata.items()}
        assert cell.tags["pulse/tenant"] == at["tenant"]
    counts = {at: (entry["rows"], entry["duplicates"]) for at, entry in reported.items()}
    assert counts == {
        (owner.tenant.slug, "2026-11-17"): (1, 0),
        (owner.tenant.slug, "2026-11-19"): (2, 1),
        (other.tenant.slug, "2026-11-19"): (1, 0),
    }
    assert len(cells) == len(reported)
    for tenant in (owner, other):
        snapshot = table(tenant).current_snapshot()
        assert snapshot is not None
        mine = [entry for (slug, _), entry in reported.items() if slug == tenant.tenant.slug]
        for report in mine:
            assert report["metadata_location"] == location(tenant)
            assert (report["snapshot_id"], report["batch"]) == (str(snapshot.snapshot_id), batch)
            assert report["bytes"] > 0
        assert sum(entry["files"] for entry in mine) == len(data_files(tenant))
    assert {e.check_name: (e.asset_key, e.passed) for e in evaluations} == {
        name: (asset_key("orders"), True) for name in checks.CHECKS
    }
    assert len(evaluations) == len(checks.CHECKS), "one evaluation covers all tenants of the batch"
    assert {e.metadata["scope"].value for e in evaluations} == {f"batch {batch}"}
    assert {e.metadata["tenants"].value for e in evaluations} == {2}


def test_a_batch_into_a_harmed_table_reports_a_check_that_fails(stack: Settings) -> None:
    owner = make_owner()
    owner.send(event("a"))
    batch = plan_batch([owner])
    smuggled = evolved(lambda update: update.add_column("smuggled", StringType()), owner)
    name = (owner.tenant.namespace, "orders")
    with postgres.transaction("pulse_catalog") as connection:
        assert iceberg.swap(connection, name, location(owner), smuggled)
    with dg.DagsterInstance.ephemeral() as instance:
        result = ingest_job().execute_in_process(run_config=run_config(batch, 1), instance=instance)
        evaluations = [
            record.dagster_event.asset_check_evaluation_data
            for record in logged(instance, result.run_id, EVALUATED)
        ]
    assert result.success, "the rows are where they belong: the check says what is wrong with the table"
    assert {e.check_name for e in evaluations if not e.passed} == {CONFORMANCE}
    assert [r["id"] for r in owner.rows()] == ["a"]


MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
EVALUATED = dg.DagsterEventType.ASSET_CHECK_EVALUATION


def logged(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType) -> list[Any]:
    """What a run left in the event log: the only place where a person sees it."""
    return list(instance.all_logs(run_id, of_type=kind))
