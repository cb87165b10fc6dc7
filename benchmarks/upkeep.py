"""Upkeep: cost of history per commit, cost of its policy, and speed of compaction."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import psycopg
import pyarrow as pa
from pyspark.sql.connect.session import SparkSession

from benchmarks import load
from benchmarks.preview import typed_rows
from pulse_pipelines import registry
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import land
from pulse_pipelines.ingest.stages import DayLanding, StagedTable
from pulse_pipelines.maintenance import state
from pulse_pipelines.maintenance.history import Done
from pulse_pipelines.maintenance.policy import Need, needs
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.registry import CurrentTable
from pulse_pipelines.tables import ledger, parquet_files
from pulse_pipelines.tables.written_files import CandidateFile
from pulse_resources import iceberg, object_store, postgres
from pulse_resources.settings import load_settings

DAY = date(2026, 11, 1)
ROWS = 50
TIMES = 30
HOURLY = 120
"""Commits between two rounds of upkeep: an hour's worth at the default flush."""

TENANTS = """
INSERT INTO pdm_tenants (tenant_id, slug, name)
SELECT gen_random_uuid(), 'many' || %(mark)s || '_' || n, 'many' FROM generate_series(1, %(count)s) n
"""
SCHEMAS = """
INSERT INTO pdm_schemas (tenant_id, name, version, schema_uri, document)
SELECT tenant_id, 'any', 1, 'pulse://' || slug || '/any/1', '{}' FROM pdm_tenants WHERE slug LIKE %(like)s
"""
DATASETS = """
INSERT INTO pdm_datasets (dataset_id, tenant_id, slug, name, schema_uri, table_schema)
SELECT gen_random_uuid(), tenant_id, 'any', 'any', 'pulse://' || slug || '/any/1', '{"fields": []}'
FROM pdm_tenants WHERE slug LIKE %(like)s
"""
LANDINGS = """
INSERT INTO landings (batch_id, tenant_id, dataset_id, slug, day, rows, duplicates, bytes, files, snapshot_id)
SELECT %(mark)s || '-' || n, tenant_id, dataset_id, 'any', current_date, 100, 0, 10000, 1, n
FROM pdm_datasets JOIN pdm_tenants t USING (tenant_id), generate_series(1, %(landings)s) n
WHERE t.slug LIKE %(like)s
"""


@dataclass
class Committer:
    """Commits small appends to one table as land and settle do, with their ledger row."""

    tenant: Tenant
    current: CurrentTable
    file: CandidateFile
    content: pa.Buffer
    count: int = 0

    @classmethod
    def of(cls, tenant: Tenant, rows: int) -> "Committer":
        current = registry.current_table(tenant, load.DATASET)
        offsets = np.arange(rows)
        times = (offsets * 7_919 % rows * (86_400_000_000 // rows)).astype(np.int64)
        table = typed_rows(current.dataset, offsets, times)
        return cls(tenant, current, *parquet_files.encode(current.dataset, DAY, "", table))

    def commit(self) -> float:
        """Commit once; returns the seconds from staging to the end of the transaction."""
        self.count += 1
        dataset, name = self.current.dataset, (self.tenant.namespace, load.DATASET)
        batch = f"bench{self.tenant.tenant_id.hex[:12]}{self.count}"
        folder = self.current.metadata_location.rpartition("/metadata/")[0]
        file = replace(
            self.file, path=f"{folder}/data/timestamp_day={DAY}/{batch}-1-{parquet_files.token()}.parquet"
        )
        object_store.put(file.path, self.content)
        began = time.perf_counter()
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            before = iceberg.current_location(connection, name)
        table = StagedTable(
            tenant_id=self.tenant.tenant_id,
            dataset_id=dataset.dataset_id,
            slug=dataset.slug,
            table=name,
            old_location=before,
            new_location=before,
            snapshot_id=None,
            files=(file,),
            days=(DayLanding(DAY, file.rows, 0, file.bytes, 1),),
        )
        staged = land.stage(table, batch)
        with postgres.tenant_transaction("pulse_pipeline", self.tenant.tenant_id) as connection:
            assert iceberg.swap(connection, name, staged.old_location, staged.new_location)
            ledger.land(connection, staged.landings(batch))
        return time.perf_counter() - began


def history(spark: SparkSession, levels: list[int]) -> Iterator[tuple[str, float]]:
    """Commit many times with hourly upkeep; at each level, measure this table and an empty one in turns."""
    old, spent, number = Committer.of(load.make_tenants(1)[0], ROWS), 0.0, 0
    for level in levels:
        (empty,) = (Committer.of(tenant, ROWS) for tenant in load.make_tenants(1))
        while number < level:
            old.commit()
            number += 1
            if number % HOURLY == 0:
                began = time.perf_counter()
                give(spark, old.tenant)
                spent += time.perf_counter() - began
        give(spark, old.tenant)
        # Measured about half an hour after the last round.
        for _ in range((HOURLY - TIMES) // 2):
            old.commit()
        timings = [(old.commit(), empty.commit()) for _ in range(TIMES)]
        number += (HOURLY + TIMES) // 2
        of_old, of_empty = (float(np.median(timing)) * 1_000 for timing in zip(*timings, strict=True))
        table = state.of_day(old.tenant, old.current.dataset, DAY).table
        yield f"after {level:,} commits: snapshots left", len(table.metadata.snapshots)
        yield f"after {level:,} commits: files of the day", len(state.files_of(table, [DAY]))
        yield f"after {level:,} commits: a commit, ms", of_old
        yield f"after {level:,} commits: a commit to an empty table, ms", of_empty
        yield f"after {level:,} commits: ratio", of_old / of_empty
    yield "seconds of upkeep, in all", spent


def give(spark: SparkSession, tenant: Tenant) -> list[Done]:
    """Run one round of upkeep of a tenant; every task must succeed."""
    done = list(run(lambda: spark, needs(tenant.slug), run_id=None, seconds=600))
    assert all(outcome.outcome == "done" for outcome in done), done
    return done


def compaction(spark: SparkSession, count: int, rows: int) -> Iterator[tuple[str, float]]:
    """Merge a day of many files, and sort another one."""
    for task in (Task.MERGE, Task.SORT):
        committer = Committer.of(load.make_tenants(1)[0], rows)
        for _ in range(count):
            committer.commit()
        dataset = committer.current.dataset
        need = Need(committer.tenant, dataset.dataset_id, dataset.slug, task, "measured", 1, DAY)
        (done,) = run(lambda: spark, [need], run_id=None, seconds=600)
        yield f"{task}: {done.before['files']} files to {done.after['files']}, s", done.seconds or 0.0
        yield f"{task}: rows/s", count * rows / (done.seconds or 1.0)


def decisions(tenants: int, landings: int) -> Iterator[tuple[str, float]]:
    """Seconds of the policy over many tenants, by the sensor and by the schedule."""
    mark = parquet_files.token()
    values = {"mark": mark, "like": f"many{mark}%", "count": tenants, "landings": landings}
    settings = load_settings().postgres
    with psycopg.connect(settings.superuser_url(settings.database), autocommit=True) as connection:
        for statement in (TENANTS, SCHEMAS, DATASETS, LANDINGS):
            connection.execute(statement, values)
        connection.execute("ANALYZE landings")
    for recent in (True, False):
        began = time.perf_counter()
        due = needs(recent=recent)
        took = time.perf_counter() - began
        yield f"{len(due)} needs of {tenants} tenants, {'recent' if recent else 'all'}, s", took
