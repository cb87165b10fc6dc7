"""How datasets show in Dagster: what an asset says of itself, its grid, and that both follow the registry."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from support.far import ANY_TIME
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event, make_owner, plan_batch

from chaos.inside import ingest_job
from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.curated.behaviour import behaviour
from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.definitions import PARTS, defs
from pulse_pipelines.defs.datasets import partitions as grid
from pulse_pipelines.defs.datasets.backfill import rebuilt_from_raw_zone
from pulse_pipelines.defs.datasets.partitions import asset_key, first_cell, partitions, tenant_partitions
from pulse_pipelines.defs.datasets.presentation import GROUP_SIZE, column_schema, groups, present
from pulse_pipelines.defs.datasets.sensor import registry_changes, registry_fingerprint
from pulse_pipelines.defs.ingest.sensor import run_config
from pulse_pipelines.defs.resources import services
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.moves import evolve
from pulse_pipelines.registry import Family, Member
from pulse_pipelines.tables.iceberg_schema import PULSE_DOCS
from pulse_resources.settings import Settings, load_settings


def member(slug: str, tenant: str, table_schema: str = '{"fields": []}') -> Member:
    owner = Tenant(uuid.uuid5(uuid.NAMESPACE_DNS, tenant), tenant)
    return Member(owner, uuid.uuid4(), slug, slug, f"pulse://{tenant}/{slug}/1", table_schema)


def family(slug: str, *tenants: str) -> Family:
    return Family(slug, tuple(member(slug, tenant) for tenant in tenants))


def test_outputs_of_ops_stay_in_memory(owner: Owner) -> None:
    """Bounds of columns are in it, which no erasure would find on Dagster's disk."""
    jobs = defs().get_repository_def().get_all_jobs()
    assert {"ingest", "upkeep", "curate"} <= {job.name for job in jobs}
    assert {job.resource_defs["io_manager"] for job in jobs} == {dg.mem_io_manager}


def test_no_run_s_config_reads_the_environment(owner: Owner) -> None:
    """`{"env": "NAME"}` would show who launches runs the passwords of the services."""
    takes = {
        (job.name, kind.key)
        for job in defs().get_repository_def().get_all_jobs()
        for kind in job.run_config_schema.config_type.type_iterator()
        if "env" in getattr(kind, "fields", {})
    }
    assert takes == set()


def test_schedules_run_by_default(owner: Owner) -> None:
    schedules = defs().get_repository_def().schedule_defs
    assert {schedule.default_status for schedule in schedules} == {dg.DefaultScheduleStatus.RUNNING}
    assert {schedule.job_name for schedule in schedules} == {"check_lake", "upkeep", "remove_old_logs"}


# groups and columns ------------------------------------------------------------------------------


def test_a_dataset_of_one_tenant_is_in_its_group() -> None:
    assert groups([family("orders", "a", "b"), family("refunds", "a")]) == {
        "orders": "shared",
        "refunds": "tenant_a",
    }


def test_a_large_group_is_split_by_first_letter() -> None:
    many = [family(f"{letter}{number}", "a", "b") for letter in "xyz" for number in range(GROUP_SIZE // 2)]
    group_of = groups([*many, family("alone", "a")])
    assert set(group_of.values()) == {"shared_x", "shared_y", "shared_z", "tenant_a"}
    assert groups(many[:GROUP_SIZE])["x0"] == "shared"


def field(name: str, kind: object, *, required: bool = False, doc: str | None = None) -> dict[str, object]:
    return {"id": 1, "name": name, "type": kind, "required": required, "doc": doc}


OWN = max(PULSE_DOCS, key=len)
DECLARED = "A property of the events' data, as the schema declares it"


def test_columns_are_those_of_all_tenants() -> None:
    struct = {"type": "struct", "fields": [field("zip", "string"), field("no", "long")]}
    first = json.dumps(
        {
            "fields": [
                field("id", "string", required=True, doc=OWN),
                field("n", "long", doc="a tenant's words"),
            ]
        }
    )
    items = {"type": "list", "element": struct}
    second = json.dumps(
        {"fields": [field("id", "string", required=True), field("n", "double"), field("l", items)]}
    )
    schema = column_schema([member("s", "a", first), member("s", "b", second)])
    assert [(c.name, c.type, c.description, c.constraints.nullable) for c in schema.columns] == [
        ("id", "string", OWN, False),
        ("n", "long", f"{DECLARED}; of 1 of 2 tenants: a", True),
        ("n", "double", f"{DECLARED}; of 1 of 2 tenants: b", True),
        ("l", "list<struct<zip: string, no: long>>", f"{DECLARED}; of 1 of 2 tenants: b", True),
    ]


def test_the_config_that_the_page_shows_is_the_asset_s() -> None:
    page = Path(__file__).parents[2] / "docs" / "control-room.md"
    (shown,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    asset = rebuilt_from_raw_zone(
        "departures", present([family("departures", "a")], {"departures": "shared"})["departures"]
    )
    jobs = [dg.define_asset_job("rebuild", [asset])]
    job = dg.Definitions([asset], jobs=jobs, resources=services()).resolve_job_def("rebuild")
    assert dg.validate_run_config(job, yaml.safe_load(shown))
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(job, yaml.safe_load(shown.replace("schema_version", "version")))


def test_each_rollup_column_and_each_resource_has_a_description() -> None:
    for rollup in (DAILY, behaviour(30.0)):
        assert rollup.schema is not None
        assert {column.name for column in rollup.schema.fields} == rollup.columns.keys()
    assert all(len(resource.description or "") > 20 for resource in services().values())


@pytest.mark.parametrize(
    "damaged", ["{", "[]", '{"fields": [{"name": "n"}]}', '{"fields": [{"name": 5, "type": {}}]}']
)
def test_a_damaged_schema_hides_no_other_tenant_s_columns(damaged: str) -> None:
    good = json.dumps({"fields": [field("id", "string", required=True)]})
    schema = column_schema([member("s", "a", damaged), member("s", "b", good)])
    assert [column.name for column in schema.columns] == ["id"]


def test_an_asset_names_its_tenant_and_its_location(owner: Owner) -> None:
    slug = f"d{uuid.uuid4().hex[:10]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1", "All orders")
    (mine,) = (known for known in registry.list_families() if known.slug == slug)
    shown = dg.AssetSpec(**present([mine], groups([mine]))[slug])
    location = registry.current_table(owner.tenant, slug).metadata_location.rpartition("/metadata/")[0]
    assert (shown.group_name, shown.owners) == (f"tenant_{owner.tenant.slug}", ["team:platform"])
    assert shown.kinds == {"iceberg", "kafka"}
    assert shown.tags["pulse/tenant"] == owner.tenant.slug
    assert "**All orders**" in (shown.description or "")
    assert shown.metadata["dagster/uri"] == location
    assert shown.metadata["dagster/table_name"] == f"pulse.{owner.tenant.namespace}.{slug}"
    (row,) = shown.metadata["tables"].records
    assert (row.data["schema_uri"], row.data["location"]) == (mine.members[0].schema_uri, location)
    columns = {column.name: column.type for column in shown.metadata["dagster/column_schema"].columns}
    assert all(column.description for column in shown.metadata["dagster/column_schema"].columns)
    assert columns["address"] == "struct<zip: string>"
    assert columns["signup_at"] == "timestamptz"


# the grid ----------------------------------------------------------------------------------------


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    monkeypatch.undo()
    load_settings.cache_clear()


def test_the_grid_is_bounded_and_moves_once_a_month(configured: pytest.MonkeyPatch) -> None:
    configured.setenv("PULSE_DAGSTER__PARTITION_DAYS", "400")
    load_settings.cache_clear()
    starts = {grid.grid_start(date(2026, 3, day)) for day in range(6, 32)}
    assert starts == {date(2025, 1, 1), date(2025, 2, 1)}
    days = (date(2026, 3, 31) - grid.grid_start(date(2026, 3, 31))).days
    assert 400 <= days <= 431
    configured.setenv("PULSE_DAGSTER__PARTITIONS_START", "2026-02-03")
    load_settings.cache_clear()
    assert grid.grid_start(date(2026, 3, 31)) == date(2026, 2, 3)


def test_a_dataset_s_part_of_the_grid_begins_with_its_first_row(owner: Owner) -> None:
    """Days before it were missing, which most of the page of a healthy tenant was."""
    slug = f"d{uuid.uuid4().hex[:10]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    today = datetime.now(UTC).date()
    earlier, month = today - timedelta(days=5), (today - timedelta(days=75)).replace(day=1)

    def first_cells() -> tuple[date, str]:
        (stored,) = registry.list_families([slug])
        (likeness,) = PARTS.likenesses([slug]).values()
        definition = likeness.spec.partitions_def
        assert isinstance(definition, dg.MultiPartitionsDefinition)
        days = definition.primary_dimension.partitions_def.get_partition_keys()
        return first_cell(stored.first_day), days[0]

    assert first_cells()[0] >= today
    numbers = [registry.version()]
    for day, expected in (
        (today, today),
        (earlier, earlier),
        (today, earlier),
        (month + timedelta(days=9), month),
        (date(1999, 12, 31), grid.grid_start()),
    ):
        owner.send(event(f"e{len(numbers)}", dataset=slug).replace(b"2026-11-19", str(day).encode()))
        ingest(owner)
        assert first_cells() == (expected, str(expected))
        numbers.append(registry.version())
    assert numbers[0] < numbers[1] < numbers[2] == numbers[3] < numbers[4] < numbers[5], "it is loaded again"
    owner.send(event("older", dataset=slug).replace(b"2026-11-19", b"1999-12-01"))
    ingest(owner)
    assert registry.list_families([slug])[0].first_day == date(1999, 1, 1), "few changes by old events"


def test_events_outside_the_grid_land_without_a_cell(owner: Owner) -> None:
    slug = f"d{uuid.uuid4().hex[:10]}"
    registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
    old, today, future = "1999-12-31", str(date.today()), "2199-01-01"
    for number, day in enumerate((old, today, future, today)):
        owner.send(event(f"e{number}", dataset=slug).replace(b"2026-11-19", day.encode()))
    with dg.DagsterInstance.ephemeral() as instance:
        batch = plan_batch([owner])
        with with_settings(**ANY_TIME):
            done = ingest_job().execute_in_process(run_config=run_config(batch, 1), instance=instance)
        logged = instance.all_logs(done.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        cells = [record.asset_materialization for record in logged if record.asset_materialization]
        rows = {cell.partition: cell.metadata["dagster/partition_row_count"].value for cell in cells}
        assert rows == {
            dg.MultiPartitionKey({"day": day, "tenant": owner.tenant.slug}): count
            for day, count in ((old, 1), (today, 2), (future, 1))
        }
        assert all(cell.metadata["freshness_seconds"].value >= 0 for cell in cells)
        (stored,) = registry.list_families([slug])
        cells_shown = partitions(slug, stored.first_day)
        status = get_and_update_asset_status_cache_value(instance, asset_key(slug), cells_shown)
        assert status is not None
        shown = status.deserialize_materialized_partition_subsets(cells_shown)
        known = cells_shown.get_partition_keys(dynamic_partitions_store=instance)
        assert {key for key in shown.get_partition_keys() if key in known} == {
            dg.MultiPartitionKey({"day": today, "tenant": owner.tenant.slug})
        }


# the registry sensor -----------------------------------------------------------------------------


def tick(instance: dg.DagsterInstance, cursor: str | None) -> tuple[str | None, dict[str, set[str]]]:
    """A tick whose requests are carried out: the next cursor, and what was added (+) or removed (-)."""
    result = registry_changes(dg.build_sensor_context(instance=instance, cursor=cursor))
    if not isinstance(result, dg.SensorResult):
        return cursor, {}
    changes: dict[str, set[str]] = {}
    for request in result.dynamic_partitions_requests or ():
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
            changes[request.partitions_def_name] = {f"+{key}" for key in request.partition_keys}
        else:
            for key in request.partition_keys:
                instance.delete_dynamic_partition(request.partitions_def_name, key)
            changes[request.partitions_def_name] = {f"-{key}" for key in request.partition_keys}
    return result.cursor, changes


def test_partitions_follow_the_registry(stack: Settings) -> None:
    one, two, slug = make_owner(), make_owner(), f"d{uuid.uuid4().hex[:10]}"
    name = str(tenant_partitions(slug).name)
    with dg.DagsterInstance.ephemeral() as instance:
        cursor, _ = tick(instance, None)
        assert tick(instance, cursor) == (cursor, {}), "nothing has changed"
        for owner in (one, two):
            registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
        cursor, changes = tick(instance, cursor)
        assert changes == {name: {f"+{one.tenant.slug}", f"+{two.tenant.slug}"}}
        registry.delete_dataset(one.tenant, slug)
        cursor, changes = tick(instance, cursor)
        assert changes == {name: {f"-{one.tenant.slug}"}}
        registry.delete_dataset(two.tenant, slug)
        cursor, changes = tick(instance, cursor)
        assert changes == {name: {f"-{two.tenant.slug}"}}, "also when the slug is gone altogether"
        assert instance.get_dynamic_partitions(name) == []
        assert tick(instance, cursor) == (cursor, {})


def test_only_partitions_of_datasets_that_have_changed_are_read(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        read: list[str] = []
        get = instance.get_dynamic_partitions
        monkeypatch.setattr(instance, "get_dynamic_partitions", lambda name: read.append(name) or get(name))
        cursor, _ = tick(instance, None)
        assert "tenants/orders" in read
        slug = f"d{uuid.uuid4().hex[:10]}"
        registry.create_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/1")
        read.clear()
        tick(instance, cursor)
        assert read == [f"tenants/{slug}"]
        read.clear()
        tick(instance, cursor)
        assert read == [f"tenants/{slug}"], "the cursor is as before: nobody carried the requests out"


def test_the_fingerprint_sees_every_change(owner: Owner, configured: pytest.MonkeyPatch) -> None:
    fingerprints = [registry_fingerprint()]
    slug = f"d{uuid.uuid4().hex[:10]}"
    uri = f"pulse://{owner.tenant.slug}/orders/1"
    registry.create_dataset(owner.tenant, slug, uri)
    fingerprints.append(registry_fingerprint())
    wider = SCHEMA | {"properties": SCHEMA["properties"] | {"added": {"type": "string"}}}
    registry.publish_schema(owner.tenant, "orders", json.dumps(wider))
    assert registry_fingerprint() == fingerprints[-1], "a schema that no dataset follows"
    evolve.move_dataset(owner.tenant, slug, f"pulse://{owner.tenant.slug}/orders/2")
    fingerprints.append(registry_fingerprint())
    registry.delete_dataset(owner.tenant, slug)
    fingerprints.append(registry_fingerprint())
    registry.create_dataset(owner.tenant, slug, uri)
    fingerprints.append(registry_fingerprint())  # another dataset of the same name
    configured.setattr("pulse_pipelines.defs.datasets.sensor.grid_start", lambda: date(2020, 1, 1))
    fingerprints.append(registry_fingerprint())
    assert len(set(fingerprints)) == len(fingerprints)
