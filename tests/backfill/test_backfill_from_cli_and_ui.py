"""The doors to a backfill: a partition of the asset in Dagster, and `pulse backfill`."""

import json

import dagster as dg
import pytest
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.lake import location
from typer.testing import CliRunner

from chaos.surroundings import pulse
from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.defs.resources import services
from pulse_pipelines.monitoring.reconcile import reconcile_tenant


def materialize(owner: Owner, day: str, **config: int) -> dg.ExecuteInProcessResult:
    """Materialize a partition in this process, through the asset that Dagster runs."""
    from pulse_pipelines.definitions import defs

    loaded = defs()
    key = dg.AssetKey(["lake", "orders"])
    asset = next(definition for definition in loaded.assets or () if key in definition.keys)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("tenants/orders", [owner.tenant.slug])
        return dg.materialize(
            [asset],
            instance=instance,
            resources={name: loaded.resources[name] for name in services()},
            partition_key=dg.MultiPartitionKey({"day": day, "tenant": owner.tenant.slug}),
            run_config={"ops": {"lake__orders": {"config": config}}},
        )


def test_a_partition_of_the_asset_is_rebuilt(owner: Owner) -> None:
    owner.send(event("a"), event("b", count=1.5))
    ingest(owner)
    before = owner.rows()
    result = materialize(owner, "2026-11-19", schema_version=1)
    (materialization,) = result.asset_materializations_for_node("lake__orders")
    assert materialization.partition == dg.MultiPartitionKey(
        {"day": "2026-11-19", "tenant": owner.tenant.slug}
    )
    assert materialization.metadata["dagster/partition_row_count"].value == 1
    assert materialization.metadata["metadata_location"].value == location(owner)
    assert owner.rows() == before
    assert reconcile_tenant(owner.tenant).balanced


def test_a_version_that_never_was_fails_the_run(owner: Owner) -> None:
    with pytest.raises(Exception, match="never followed version 7"):
        materialize(owner, "2026-11-19", schema_version=7)


def test_the_command_line_rebuilds_a_range_of_days(owner: Owner) -> None:
    owner.send(event("a"), event("b").replace(b"11-19T", b"11-17T"))
    ingest(owner)
    before, slug = owner.rows(), owner.tenant.slug
    done = pulse("backfill", slug, "orders", "--from", "2026-11-17", "--to", "2026-11-19", "--json")
    answer = json.loads(done.stdout)
    assert [(day["day"], day["rows"]) for day in answer["days"]] == [
        ("2026-11-17", 1),
        ("2026-11-18", 0),
        ("2026-11-19", 1),
    ]
    assert answer["failed"] == {}
    assert owner.rows() == before
    shown = CliRunner().invoke(cli.app, ["backfill", slug, "orders", "--from", "2026-11-18"]).stderr
    assert "There was nothing to rebuild" in shown


def test_wrong_arguments_of_the_backfill_command_are_named(owner: Owner) -> None:
    slug = owner.tenant.slug
    wrong = {
        "no such dataset": ("backfill", slug, "nothing", "--from", "2026-11-17"),
        "never followed version 3": ("backfill", slug, "orders", "--from", "2026-11-17", "--version", "3"),
        "is not a date": ("backfill", slug, "orders", "--from", "next week"),
        "--to": ("backfill", slug, "orders", "--from", "2026-11-17", "--to", "2026-11-16"),
    }
    for words, arguments in wrong.items():
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 2, done.stderr
        assert words in done.stderr
    registry.delete_dataset(owner.tenant, "orders")
