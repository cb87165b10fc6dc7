"""Which table wants what: decided from the ledger, by what piled up since upkeep last looked."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.lake import DAY, location, pointing_at
from support.maintenance import done

from chaos.surroundings import with_settings
from pulse_pipelines.definitions import defs
from pulse_pipelines.defs.maintenance.triggers import upkeep_needed
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.policy import (
    MB,
    DayState,
    TableState,
    allowed_files,
    needs,
    of_day,
    of_table,
)
from pulse_resources.settings import UpkeepSettings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SETTINGS = UpkeepSettings()
HOUR = timedelta(hours=1)


def day(files: int, *, quiet: timedelta = timedelta(0), **more: object) -> DayState:
    state = DayState(
        tenant_id=uuid.uuid4(),
        tenant="acme",
        dataset_id=uuid.uuid4(),
        slug="orders",
        day=date(2026, 11, 20),
        landed_files=files,
        landed_bytes=files * 1_000,
        first_at=NOW - 30 * HOUR,
        last_at=NOW - quiet,
        level=None,
        files_then=None,
        bytes_then=None,
        compacted_files=None,
        compacted_bytes=None,
        compacted_at=None,
        now=NOW,
    )
    return replace(state, **more)  # type: ignore[arg-type]


def compacted(level: int, files: int, since: int, size: int = 1_000) -> DayState:
    """A day that was compacted to `files` of `size` bytes an hour ago, and got more `since`."""
    before = day(1_000 + since, quiet=7 * HOUR)
    return replace(
        before,
        level=level,
        files_then=1_000,
        bytes_then=1_000_000,
        compacted_files=files,
        compacted_bytes=files * size,
        compacted_at=NOW - HOUR,
    )


@pytest.mark.parametrize(
    ("state", "task"),
    [
        (day(15), None),
        (day(16), Task.MERGE),
        (day(16, first_at=NOW - HOUR / 2), None),
        (day(160, first_at=NOW - HOUR / 2), Task.MERGE),
        (day(1, quiet=7 * HOUR), None),
        (day(1, quiet=7 * HOUR, landed_bytes=40 * MB), Task.SORT),
        (day(2, quiet=5 * HOUR), None),
        (day(2, quiet=7 * HOUR), Task.SORT),
        (compacted(1, 1, 0), None),
        (compacted(1, 2, 0), Task.SORT),
        (compacted(1, 1, 1), Task.SORT),
        (compacted(2, 1, 0), None),
        (compacted(2, 1, 2), None),
        (compacted(2, 1, 3), Task.SORT),
        (compacted(2, 3, 0, 400 * MB), None),
        (compacted(2, 3, 5, 400 * MB), None),
        (compacted(2, 3, 7, 400 * MB), Task.SORT),
    ],
)
def test_a_day_needs_the_task_of_its_state(state: DayState, task: Task | None) -> None:
    need = of_day(state, SETTINGS)
    assert (need and need.task) is task, need


@pytest.mark.parametrize(("size", "files"), [(0, 3), (512 * MB, 3), (512 * MB + 1, 6), (2_048 * MB, 12)])
def test_a_compacted_day_has_three_files_per_512_mb_at_most(size: int, files: int) -> None:
    assert allowed_files(size, SETTINGS) == files


def table(**more: object) -> TableState:
    state = TableState(
        tenant_id=uuid.uuid4(),
        tenant="acme",
        dataset_id=uuid.uuid4(),
        slug="orders",
        commits=0,
        first_at=None,
        last_at=NOW - 10 * HOUR,
        recorded_at=NOW - 5 * HOUR,
        snapshots=50,
        oldest_at=NOW - 20 * HOUR,
        manifests=5,
        cleaned_at=NOW - 5 * HOUR,
        now=NOW,
    )
    return replace(state, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "tasks"),
    [
        (table(), []),
        (table(commits=96), []),
        (table(manifests=90, commits=16), []),
        (table(manifests=90, commits=24), [Task.MANIFESTS]),
        (table(snapshots=325, manifests=1), []),
        (table(snapshots=326, manifests=1), [Task.EXPIRE]),
        (table(oldest_at=NOW - 29 * HOUR), []),
        (table(oldest_at=NOW - 31 * HOUR), [Task.EXPIRE]),
        (table(oldest_at=NOW - 31 * HOUR, snapshots=10), []),
        (table(cleaned_at=NOW - 25 * HOUR), [Task.ORPHANS]),
        (table(cleaned_at=NOW - 23 * HOUR, recorded_at=NOW), []),
        (table(cleaned_at=None), [Task.ORPHANS]),
        (table(cleaned_at=None, last_at=None, recorded_at=None, oldest_at=None), []),
    ],
)
def test_a_table_needs_the_tasks_of_its_state(state: TableState, tasks: list[Task]) -> None:
    assert [need.task for need in of_table(state, SETTINGS)] == tasks


@pytest.fixture
def eager() -> Iterator[None]:
    with with_settings(
        UPKEEP__MERGE_FILES=4, UPKEEP__MERGE_MINUTES=0, UPKEEP__MANIFESTS=2, UPKEEP__SWEEP_HOURS=1
    ):
        yield


def needed_tasks(owner: Owner) -> set[Task]:
    needed = needs(owner.tenant.slug, recent=True)
    assert [need.task for need in needed] == [n.task for n in needs(owner.tenant.slug)]
    return {need.task for need in needed}


def test_done_tasks_are_needed_again_when_more_lands(owner: Owner, eager: None) -> None:
    assert needed_tasks(owner) == set()
    for number in range(3):
        owner.send(event(f"a{number}"), event(f"b{number}"))
        ingest(owner)
    assert needed_tasks(owner) == {Task.MERGE, Task.MANIFESTS, Task.ORPHANS, Task.RAW}
    done(owner, Task.MERGE, Task.MANIFESTS, Task.ORPHANS)
    done(owner, Task.RAW)
    assert needed_tasks(owner) == set()
    owner.send(event("c"), event("d"))
    ingest(owner)
    assert needed_tasks(owner) == set(), "two more files are not worth it"


def test_dagster_launches_needed_upkeep_and_fails_at_a_rolled_back_table(owner: Owner, eager: None) -> None:
    for number in range(2):
        owner.send(event(f"a{number}"), event(f"b{number}"))
        ingest(owner)
        if not number:
            earlier = location(owner)
    job = defs().get_job_def("upkeep")
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, definitions=defs())
        request = upkeep_needed(context)
        assert isinstance(request, dg.RunRequest)
        instance.create_run_for_job(job, run_config=request.run_config, status=dg.DagsterRunStatus.STARTED)
        assert isinstance(upkeep_needed(context), dg.SkipReason), "a run is active"
    assert upkeep_needed.default_status is dg.DefaultSensorStatus.RUNNING
    config = {"ops": {"run_maintenance": {"config": {"tenant": owner.tenant.slug}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        with pointing_at(owner, earlier):
            broken = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
        assert not broken.success
        (failure,) = [e.step_failure_data.error for e in broken.all_events if e.is_step_failure]
        assert "rolled back past other writers' commits" in str(failure)
        result = job.execute_in_process(run_config=config, instance=instance)
        observed = instance.fetch_observations(dg.AssetKey(["lake", "orders"]), limit=10).records
    (merged,) = [r for r in observed if r.partition_key]
    day = dg.MultiPartitionKey({"day": str(DAY), "tenant": owner.tenant.slug})
    assert merged.partition_key == day
    metadata = merged.asset_observation.metadata
    assert (metadata["files_before"].value, metadata["files_after"].value) == (4, 1)
    outputs = [e for e in result.all_events if e.is_successful_output]
    shown = [e.step_output_data.metadata["tasks"] for e in outputs]
    assert {record.data["task"] for record in shown[0].records} >= {"merge", "sweep"}
