"""Run: everything that is due, computed and committed, each dataset for itself."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.curated import tidy
from pulse_pipelines.curated.commit import Curated, commit
from pulse_pipelines.curated.compute import Result, compute
from pulse_pipelines.curated.due import Due
from pulse_pipelines.stages.handles import Failure
from pulse_resources.errors import Terminal, Transient

OVERLAP = 4
"""Datasets that are committed at a time: most of it is waiting for the object store."""


@dataclass(frozen=True)
class Outcome:
    days: tuple[Curated, ...]
    failures: tuple[Failure, ...]
    """What may succeed later: it stays due."""


def curate(spark: SparkSession, due: Sequence[Due]) -> Outcome:
    """Compute and commit what is due; what fails for one dataset fails for no other."""
    results, failures = compute(spark, due)
    days: list[Curated] = []
    with ThreadPoolExecutor(OVERLAP, thread_name_prefix="curate") as pool:
        for outcome in pool.map(_commit_safely, results):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                days.extend(outcome)
    return Outcome(tuple(days), tuple(failures))


def _commit_safely(results: Sequence[Result]) -> list[Curated] | Failure:
    try:
        done = commit(results)
        for location in {day.metadata_location for day in done if day.metadata_location}:
            if (table := tidy.due(location)) is not None:
                tidy.tidy(table)
        return done
    except (psycopg.Error, OSError, Transient, Terminal) as error:
        pinned = results[0].pinned
        reason = f"{pinned.dataset.slug}: {type(error).__name__}: {error}"
        return Failure(pinned.tenant.tenant_id, "commit", reason)
