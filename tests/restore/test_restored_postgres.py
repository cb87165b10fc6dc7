"""A Postgres that came back as it was: events land again, and nothing is removed until that is accepted."""

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from pyiceberg.catalog.rest import RestCatalog
from support.backfill import balanced
from support.catalog import Guest
from support.faults import AtPoint
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import event, make_owner

from chaos.surroundings import forget_connections
from pulse_pipelines import registry
from pulse_pipelines.defs.maintenance.triggers import upkeep_daily, upkeep_needed
from pulse_pipelines.maintenance import policy, run
from pulse_pipelines.monitoring import doctor, issues
from pulse_pipelines.restore import findings, repair
from pulse_pipelines.restore.findings import Kind
from pulse_pipelines.tables import orphan_files, store_mark
from pulse_resources import spark
from pulse_resources.errors import Terminal
from pulse_resources.local import postgres as local_postgres
from pulse_resources.settings import Settings, load_settings


def program(name: str, *arguments: str) -> None:
    path = local_postgres._wheel() / "bin" / name
    subprocess.run([path, *arguments], check=True, capture_output=True)


@contextmanager
def maintenance() -> Iterator[psycopg.Connection]:
    with psycopg.connect(load_settings().postgres.superuser_url("postgres"), autocommit=True) as connection:
        yield connection


def backed_up(folder: Path) -> Path:
    settings, copy = load_settings().postgres, folder / "pulse.dump"
    program(
        "pg_dump", "--format=custom", "--create", f"--file={copy}", settings.superuser_url(settings.database)
    )
    return copy


def restored(copy: Path) -> None:
    """Put the database back as the copy has it."""
    settings = load_settings().postgres
    name, lost = sql.Identifier(settings.database), sql.Identifier(f"lost_{uuid.uuid4().hex[:8]}")
    with maintenance() as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(name))
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        connection.execute(query, [settings.database])
        connection.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(name, lost))
        program("pg_restore", "--create", f"--dbname={settings.superuser_url('postgres')}", str(copy))
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(lost))
    forget_connections()


def own_ids(engine: RestCatalog) -> list[int]:
    return sorted(engine.load_table("own.mail").scan().to_arrow()["id"].to_pylist())


@pytest.fixture
def marked() -> Iterator[None]:
    """The marks agree before and after the test: others run upkeep."""
    store_mark.accept()
    yield
    store_mark.accept()


def test_events_land_again_and_commits_of_engines_come_back(
    tmp_path: Path, marked: None, catalog: Api, writer: Guest, own_engine: RestCatalog
) -> None:
    owner = writer.owner
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = own_engine.create_table("own.mail", rows.schema)
    table.append(rows)
    owner.send(event("a"), event("b"))
    ingest(owner)
    copy = backed_up(tmp_path)

    owner.send(event("c"), event("a"), b"not JSON")
    ingest(owner)
    before, letters = owner.rows(), owner.dead_letters()
    for number in (2, 3):
        table.append(pa.table({"id": pa.array([number], pa.int64())}))
    lost = make_owner()
    lost.send(event("lost"))
    assert store_mark.renew() is None
    restored(copy)

    difference = store_mark.compare()
    assert difference is not None
    assert difference.sentence.startswith("Postgres was restored: it is of ")
    assert [issue.kind for issue in issues.find_restored()] == ["restored"]
    with pytest.raises(Terminal, match="Postgres was restored"):
        list(run.run(lambda: spark.shared(), policy.needs(), run_id=None, seconds=60))
    (behind,) = findings.find_in(owner.tenant)
    assert (behind.kind, behind.subject, behind.detail) == (
        Kind.TENANT_TABLE,
        "own.mail",
        "commits in its folder that the catalog does not know: 2",
    )
    tenants = registry.list_tenants()
    unknown = [finding.detail for finding in findings.find_unknown_tenants(tenants)]
    assert any(str(lost.tenant.tenant_id) in detail for detail in unknown)

    assert own_ids(own_engine) == [1]
    (step,) = repair.repair(spark.shared(), owner.tenant, parallelism=2)
    assert (step.subject, step.failed) == ("own.mail", None)
    assert own_ids(own_engine) == [1, 2, 3]
    table.refresh().append(pa.table({"id": pa.array([4], pa.int64())}))
    ingest(owner)
    without = [{name: value for name, value in row.items() if name != "_batch"} for row in before]
    assert [{n: v for n, v in row.items() if n != "_batch"} for row in owner.rows()] == without
    assert [letter["payload"] for letter in owner.dead_letters()] == [letter["payload"] for letter in letters]
    balanced(owner)
    assert list(findings.find_in(owner.tenant)) == []
    store_mark.accept()
    assert store_mark.compare() is None


@pytest.mark.parametrize("point", ["store_mark.written", "files.before_put"])
def test_an_interrupted_renewal_of_the_mark_is_not_a_restore(
    stack: Settings, marked: None, at: AtPoint, point: str
) -> None:
    def die() -> None:
        raise RuntimeError("killed")

    at(point, die)
    with pytest.raises(RuntimeError, match="killed"):
        store_mark.renew()
    assert store_mark.renew() is None
    assert store_mark.compare() is None


def test_a_store_that_was_restored_or_is_new(stack: Settings, marked: None) -> None:
    path = store_mark._path()
    earlier = store_mark.object_store.file_system().open_input_stream(path.removeprefix("s3://")).read()
    for _ in range(2):
        assert store_mark.renew() is None
    store_mark.object_store.put(path, earlier)
    difference = store_mark.renew()
    assert difference is not None
    assert difference.sentence.startswith("the object store was restored: it is of ")
    (mark,) = [finding for finding in doctor.examine("object store") if finding.check == "mark"]
    assert (mark.ok, mark.found) == (False, difference.sentence)
    with dg.instance_for_test() as instance:
        triggers = (
            upkeep_needed(dg.build_sensor_context(instance=instance)),
            upkeep_daily(dg.build_schedule_context(instance=instance)),
        )
    for skipped in triggers:
        assert isinstance(skipped, dg.SkipReason)
        assert skipped.skip_message == f"{difference.sentence}: see `pulse restore`"
    store_mark.object_store.delete([path])
    difference = store_mark.renew()
    assert difference is not None
    assert difference.sentence.startswith("the object store is new, and Postgres is of ")
    with pytest.raises(Terminal, match="pulse restore check"):
        orphan_files.remove(make_owner().tenant, lambda: None, [])  # type: ignore[arg-type,return-value]
