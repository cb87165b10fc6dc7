"""Landing: rewrite candidate files without the rows that must not land, and stage each table's next metadata.

Runs as one Spark job over all datasets of the batch. Nothing becomes visible here: settle swaps the pointers.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.entities.heads import Places
from pulse_pipelines.entities.index_entries import Index
from pulse_pipelines.ingest import candidate_files, priority, versions
from pulse_pipelines.ingest.stages import (
    NEXT_STEP,
    DayLanding,
    Failure,
    Gated,
    Landed,
    LandingFailed,
    Positions,
    StagedTable,
)
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.commit import BATCH_PROPERTY
from pulse_pipelines.tables.live_table import current_location
from pulse_pipelines.tables.parquet_files import data_files
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import iceberg
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import readable
from pulse_resources.process.faults import fail_point
from pulse_resources.spark import noted, run_tasks

OVERLAP = 4
"""Datasets that one task stages at a time: most of staging is waiting for the object store."""


@dataclass(frozen=True)
class LandDataset:
    batch_id: str
    tenant: Tenant
    dataset: Dataset
    candidates: tuple[CandidateFile, ...]
    duplicates: Positions
    over_quota: Positions
    bulk: bool
    places: Places | None
    """For a dataset of entities: the versions that land; None for any other, or if none land."""
    indexes: tuple[Index, ...] = ()
    """The indexes of its log, to be maintained."""


@dataclass(frozen=True)
class LandTask:
    """A share of a batch."""

    datasets: tuple[LandDataset, ...]


def land(spark: SparkSession, gated: Gated, parallelism: int) -> Landed:
    """Stage all datasets of the batch, spread over `parallelism` Spark tasks.

    A tenant's tables or files that kill the executor fail the whole job: from the third attempt on every
    tenant has a job of its own, as in the drain.
    """
    plan, verdicts = gated.plan, gated.verdicts
    failed = {failure.tenant_id for failure in gated.failures}
    candidates: dict[UUID, list[CandidateFile]] = defaultdict(list)
    for topic in gated.topics:
        if topic.tenant_id not in failed:
            for candidate in topic.candidates:
                candidates[candidate.dataset_id].append(candidate)
    work = [
        LandDataset(
            batch_id=plan.batch_id,
            tenant=scope.tenant,
            dataset=dataset,
            candidates=tuple(candidates[dataset.dataset_id]),
            duplicates=_in_files(gated, dataset.dataset_id),
            over_quota=verdicts.over_quota.get(dataset.dataset_id, {}),
            bulk=plan.bulk,
            places=added.places if (added := verdicts.appends.get(dataset.dataset_id)) else None,
            indexes=tuple(index.index for index in added.indexes) if added else (),
        )
        for scope in plan.scopes.values()
        for dataset in scope.datasets
        if dataset.dataset_id in candidates
    ]
    tables: list[StagedTable] = []
    refused: list[LandingFailed] = []
    failures = list(gated.failures)
    for group in [work] if plan.together else _by_tenant(work):
        group.sort(key=lambda item: len(item.candidates), reverse=True)
        shares = [
            LandTask(tuple(share)) for index in range(parallelism) if (share := group[index::parallelism])
        ]
        try:
            with noted(NEXT_STEP, **plan.about):
                outcomes = run_tasks(spark, shares, land_task, [StagedTable, LandingFailed, Failure])
        except PySparkException as error:
            if plan.together:
                raise
            failures.append(Failure(group[0].tenant.tenant_id, "land", str(error)[:500]))
            continue
        for outcome in outcomes:
            if isinstance(outcome, StagedTable):
                tables.append(outcome)
            elif isinstance(outcome, LandingFailed):
                refused.append(outcome)
            else:
                failures.append(outcome)
    return Landed(
        plan=plan,
        topics=gated.topics,
        verdicts=verdicts,
        tables=tuple(tables),
        refused=tuple(refused),
        failures=tuple(failures),
    )


def _by_tenant(work: Iterable[LandDataset]) -> list[list[LandDataset]]:
    of_tenant: dict[UUID, list[LandDataset]] = defaultdict(list)
    for dataset_work in work:
        of_tenant[dataset_work.tenant.tenant_id].append(dataset_work)
    return list(of_tenant.values())


def _in_files(gated: Gated, dataset_id: UUID) -> Positions:
    """The dataset's duplicates that are in its files: the drain left the others out."""
    omitted = {at for topic in gated.topics for at in topic.copies.get(dataset_id, ())}
    duplicates = gated.verdicts.duplicates.get(dataset_id, {})
    if not omitted:
        return duplicates
    return {
        partition: [offset for offset in offsets if parquet_files.position(partition, offset) not in omitted]
        for partition, offsets in duplicates.items()
    }


def land_task(task: LandTask) -> Iterator[StagedTable | LandingFailed | Failure]:
    """Stage a share of the batch in a Spark task; yields a result per dataset."""
    with ThreadPoolExecutor(OVERLAP, thread_name_prefix="land") as pool:
        yield from pool.map(_land_safely, task.datasets)


def _land_safely(work: LandDataset) -> StagedTable | LandingFailed | Failure:
    try:
        return land_dataset(work)
    except Terminal as error:
        return LandingFailed(work.tenant.tenant_id, work.dataset.dataset_id, str(error))
    except Exception as error:  # of any kind: it must not fail the other datasets
        reason = f"{work.dataset.slug}: {type(error).__name__}: {error}"
        return Failure(work.tenant.tenant_id, "land", reason)


def land_dataset(work: LandDataset) -> StagedTable:
    """Rewrite candidate files that hold rows which must not land, then stage the table's next metadata.

    Raises:
        Terminal: there is no table to land in.
        OSError: the object store failed.
    """
    name = (work.tenant.namespace, work.dataset.slug)
    location = current_location(work.tenant.tenant_id, name)
    files: list[CandidateFile] = []
    days: dict[date, DayLanding] = {}
    pause = priority.between_pieces(work.bulk)
    for candidate in work.candidates:
        pause()
        if work.dataset.of_entities:
            clean = versions.numbered(work.dataset, candidate, work.places, work.indexes)
        else:
            clean = _without(work.dataset, candidate, work.duplicates)
        dropped = candidate.rows - (clean.rows if clean else 0)
        clean = clean and _without(work.dataset, clean, work.over_quota)
        before = days.get(
            candidate.day, DayLanding(day=candidate.day, rows=0, duplicates=0, bytes=0, files=0)
        )
        days[candidate.day] = DayLanding(
            day=candidate.day,
            rows=before.rows + (clean.rows if clean else 0),
            duplicates=before.duplicates + dropped + candidate.copies,
            bytes=before.bytes + (clean.bytes if clean else 0),
            files=before.files + (1 if clean else 0),
        )
        if clean:
            files.append(clean)
    staged = StagedTable(
        tenant_id=work.tenant.tenant_id,
        dataset_id=work.dataset.dataset_id,
        slug=work.dataset.slug,
        table=name,
        old_location=location,
        new_location=location,
        snapshot_id=None,
        files=tuple(files),
        days=tuple(days[day] for day in sorted(days)),
    )
    return stage(staged, work.batch_id) if files else staged


def stage(table: StagedTable, batch_id: str) -> StagedTable:
    """Stage the table's files on top of its old metadata, or of newer metadata if the old is gone.

    The dataset may have moved to a newer schema since the files were written: files with a column that was
    replaced are rewritten.

    Raises:
        Terminal: the table is another dataset's, of the same slug.
        OSError: the object store failed.
    """
    return readable.as_it_is(
        partial(_stage, table, batch_id),
        table.old_location,
        partial(current_location, table.tenant_id, table.table),
        str,
    )


def _stage(table: StagedTable, batch_id: str, location: str) -> StagedTable:
    current = iceberg.load_table(table.table, location, history=False)
    owner = current.properties.get(iceberg.DATASET_PROPERTY)
    if owner != str(table.dataset_id):
        raise Terminal("the dataset was deleted: its slug is another one's now", dataset=table.slug)
    fitting = candidate_files.fit_schema(table.files, current.schema())
    fail_point("land.before_stage")
    staged = iceberg.stage_append(current, data_files(fitting), {BATCH_PROPERTY: batch_id})
    fail_point("land.after_stage")
    return replace(
        table,
        old_location=staged.old,
        new_location=staged.new,
        snapshot_id=staged.snapshot_id,
        files=fitting,
        days=tuple(
            replace(day, bytes=sum(file.bytes for file in fitting if file.day == day.day))
            for day in table.days
        ),
    )


def _without(dataset: Dataset, candidate: CandidateFile, unwanted: Positions) -> CandidateFile | None:
    """The candidate without the unwanted rows (rewritten only if it has any); None when no row is left."""
    suspects = {
        partition: inside
        for partition, (first, last) in candidate.offsets.items()
        if (inside := _between(unwanted.get(partition, []), first, last))
    }
    positions = {parquet_files.position(p, offset) for p, offsets in suspects.items() for offset in offsets}
    if candidate.positions is not None:
        positions &= candidate.positions
        if len(positions) == candidate.rows:
            return None
    if not positions:
        return candidate
    rows = candidate_files.read_rows(dataset, candidate)
    remaining = rows.filter(
        pc.invert(pc.is_in(parquet_files.positions(rows), pa.array(list(positions), pa.int64())))
    )
    if remaining.num_rows == candidate.rows:
        return candidate
    return candidate_files.with_rows(dataset, candidate, remaining) if remaining.num_rows else None


def _between(offsets: list[int], first: int, last: int) -> list[int]:
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, last + 1)]
