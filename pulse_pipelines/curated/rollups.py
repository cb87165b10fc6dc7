"""The rollups of a dataset: `daily`, `behaviour` if its schema names an actor, and those of teams' files."""

from collections.abc import Collection, Sequence
from pathlib import Path

from pulse_pipelines.curated.behaviour import behaviour
from pulse_pipelines.curated.daily import DAILY
from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.curated.sqlfile import BUILT_IN, TeamRollup, read
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.roles import ACTOR
from pulse_pipelines.tables import dataset_rows
from pulse_resources import postgres
from pulse_resources.settings import load_settings

__all__ = ["BUILT_IN", "of_dataset", "slugs_with_actor", "team_rollups"]


def of_dataset(dataset: Dataset, team: Sequence[TeamRollup]) -> tuple[Rollup, ...]:
    """The rollups of a dataset, built-in ones first."""
    rollups: list[Rollup] = [DAILY]
    if dataset.column_of(ACTOR):
        rollups.append(behaviour(load_settings().curated.session_gap_minutes))
    return (*rollups, *(rollup for rollup in team if rollup.dataset == dataset.slug))


def slugs_with_actor(slugs: Collection[str]) -> set[str]:
    """The slugs, among these, under which some tenant's dataset has a schema that names an actor."""
    with postgres.transaction("pulse_pipeline") as connection:
        datasets = dataset_rows.read(
            connection, "strpos(s.document, %s) > 0 AND d.slug = ANY(%s)", [ACTOR, list(slugs)]
        )
        return {dataset.slug for dataset in datasets if _has_actor(dataset)}


def _has_actor(dataset: Dataset) -> bool:
    try:
        return dataset.column_of(ACTOR) is not None
    except Exception:  # one tenant's unreadable schema must not break the assets of all
        return False


def team_rollups(folder: Path | None = None) -> list[TeamRollup]:
    """Read the rollups of the SQL files in the folder of the settings (or another), by file name.

    A broken file gives a rollup with a `problem`, which its run reports.
    """
    files = sorted((folder or load_settings().curated.rollups_dir).glob("*.sql"))
    rollups: list[TeamRollup] = []
    for file in files:
        sources = {(rollup.dataset, rollup.name): rollup.source for rollup in rollups}
        rollups.append(read(file, sources))
    return rollups
