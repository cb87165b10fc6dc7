"""Everything that Dagster runs, put together."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import dagster as dg
import psycopg

from pulse_pipelines import pipes, registry
from pulse_pipelines.curated import rollups
from pulse_pipelines.defs.alerts.sensor import alert_watch
from pulse_pipelines.defs.curated.assets import curated_assets
from pulse_pipelines.defs.curated.job import curate
from pulse_pipelines.defs.curated.sensor import curated_due
from pulse_pipelines.defs.datasets.backfill import dataset_assets
from pulse_pipelines.defs.datasets.checks import dataset_checks
from pulse_pipelines.defs.datasets.cli_backfills import cli_backfill_events
from pulse_pipelines.defs.datasets.lake_check import check_lake, check_lake_hourly
from pulse_pipelines.defs.datasets.presentation import groups
from pulse_pipelines.defs.datasets.sensor import LOADED, registry_changes, registry_fingerprint
from pulse_pipelines.defs.ingest.attempt import BatchAttempt
from pulse_pipelines.defs.ingest.job import ingest
from pulse_pipelines.defs.ingest.overdue import overdue_dead_letters, publish_dead_letters
from pulse_pipelines.defs.ingest.sensor import ingest_lag
from pulse_pipelines.defs.ingest.syncs import move_syncs_on, syncs
from pulse_pipelines.defs.maintenance.job import upkeep
from pulse_pipelines.defs.maintenance.triggers import upkeep_daily, upkeep_needed
from pulse_pipelines.defs.moves.job import move
from pulse_pipelines.defs.moves.sensor import dataset_moves
from pulse_pipelines.defs.parts import MODEL, DatasetParts
from pulse_pipelines.defs.pipes.assets import JOB as PIPES, pipe_assets, pipe_jobs
from pulse_pipelines.defs.pipes.sensor import pipes_due, pipes_watched
from pulse_pipelines.defs.resources import services
from pulse_pipelines.pipes.transforms.queries import sources_by_name
from pulse_pipelines.registry import Family
from pulse_pipelines.runtime import run_scope
from pulse_pipelines.runtime.log_retention import remove_old_logs, remove_old_logs_daily
from pulse_pipelines.runtime.parts import Parts
from pulse_resources.errors import Transient, first_line

registry.import_all()  # runs are forks of a process that has imported this module


JOBS = (ingest, publish_dead_letters, move_syncs_on, check_lake, upkeep, curate, move, remove_old_logs)
"""Jobs whose runs need no asset: they report by the assets' keys."""


@dg.definitions
def defs() -> dg.Definitions:
    """All definitions; in the process of a run, those that it needs; in the code server, those in no part."""
    run = run_scope.current()
    if run is not None and run.job in {job.name for job in JOBS}:
        return _definitions((), {})
    assets = None if run is None else run.assets()
    if assets is not None:
        return PARTS.build_assets(assets)
    if run is not None and run.job == PIPES:
        return _definitions((), pipes.owners())
    try:
        loaded = {
            LOADED: registry_fingerprint()
        }  # before the families: what changes in between makes it stale
    except psycopg.OperationalError as error:
        raise Transient(
            f"Postgres does not answer, and the assets are those of the datasets in it: {first_line(error)}",
            fix="Start the stack with `pulse up`, in this folder or in that of PULSE_HOME",
        ) from None
    families = [MODEL] if run_scope.parted() else registry.list_families()
    sources = sources_by_name()
    slugs = registry.existing_slugs(set[str]().union(*sources.values())) if sources else set()
    read = {name: slugs & of_pipe for name, of_pipe in sources.items()}
    return _definitions(families, pipes.owners(), read, loaded)


def _definitions(
    families: Sequence[Family],
    pipe_owners: Mapping[str, str | None],
    read: Mapping[str, Collection[str]] = MappingProxyType({}),
    metadata: Mapping[str, str] = MappingProxyType({}),
    placed: Mapping[str, str] | None = None,
    acting: Collection[str] | None = None,
) -> dg.Definitions:
    """Build the definitions.

    Args:
        families: those whose assets and checks are in it.
        pipe_owners: tenants of the pipes whose assets are in it, by name (see `pipes.owners`).
        read: slugs of the datasets that transforms read, by the pipes' names.
        metadata: of the code location.
        placed: group of each slug; None: the families are all that there are.
        acting: slugs with a schema that names an actor; None: as the registry has it.
    """
    slugs = [family.slug for family in families]
    placed = groups(families) if placed is None else placed
    return dg.Definitions(
        metadata=metadata,
        assets=[
            *dataset_assets(families, placed),
            *curated_assets(families, rollups.team_rollups() if families else (), placed, acting),
            *pipe_assets(pipe_owners, read),
        ],
        asset_checks=dataset_checks(slugs),
        jobs=[*JOBS, *pipe_jobs(pipe_owners)],
        sensors=[
            ingest_lag,
            overdue_dead_letters,
            syncs,
            registry_changes,
            cli_backfill_events,
            alert_watch,
            upkeep_needed,
            curated_due,
            dataset_moves,
            *([pipes_due, pipes_watched] if pipe_owners else []),
        ],
        schedules=[check_lake_hourly, upkeep_daily, remove_old_logs_daily],
        executor=dg.in_process_executor,  # a process per step would start Python twice for each run
        resources=services()
        | {
            # Ops hand over small values within one process. On a disk, bounds of columns would outlive an
            # erasure.
            "io_manager": dg.mem_io_manager,
            "attempt": BatchAttempt.configure_at_launch(),
        },
    )


PARTS: Parts = DatasetParts(_definitions)
"""Taken by the code server."""
