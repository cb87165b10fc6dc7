"""Previews of a table with many rows, days, files and commits."""

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import load
from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest import batch_files, land
from pulse_pipelines.ingest.stages import StagedTable
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.query.preview import limits, preview
from pulse_pipelines.query.snapshots import snapshots
from pulse_pipelines.tables import arrow_columns, parquet_files
from pulse_resources import iceberg, object_store, postgres

DAYS = 30
COMMITS_A_DAY = 4
LATE = 0.05
"""Share of rows of the previous day: every commit has files of two days."""
FIRST_DAY = datetime(2026, 11, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000
_WARM_UP = 5


def build(rows: int, commits_a_day: int = COMMITS_A_DAY) -> Tenant:
    """Make a tenant's dataset, filled by staged appends as ingestion makes them.

    With one commit a day the table has few files, as after upkeep.
    """
    (tenant,) = load.make_tenants(1)
    current = registry.current_table(tenant, load.DATASET)
    name, location = (tenant.namespace, load.DATASET), current.metadata_location
    commits, chance = DAYS * commits_a_day, np.random.default_rng(1)
    for number in range(commits):
        offsets = np.arange(rows * number // commits, rows * (number + 1) // commits)
        times = np.sort(chance.random(len(offsets))) + number
        late = chance.random(len(offsets)) < (LATE if number >= commits_a_day > 1 else 0)
        moments = (times / commits_a_day * _DAY_US).astype(np.int64) - late * _DAY_US
        staged = _staged(tenant, current.dataset, typed_rows(current.dataset, offsets, moments), location)
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            assert iceberg.swap(connection, name, location, staged.new_location)
        location = staged.new_location
    return tenant


def typed_rows(dataset: Dataset, offsets: npt.NDArray[Any], times: npt.NDArray[Any]) -> pa.Table:
    count = len(offsets)
    at = pa.array(times + int(FIRST_DAY.timestamp() * 1_000_000)).cast(arrow_columns.TIMESTAMP)
    values: dict[str, Any] = {
        "id": [str(uuid.uuid4()) for _ in range(count)],
        "tenant_id": [str(dataset.tenant_id)] * count,
        "dataset_id": [str(dataset.dataset_id)] * count,
        "timestamp": at,
        "ingested_at": at,
        "context": ['{"ip":"192.0.2.17","agent":"pulse-bench/1.0"}'] * count,
        "trace_id": [uuid.uuid4().hex for _ in range(count)],
        "schema_version": [1] * count,
        "_batch": ["bench"] * count,
        "_kafka_partition": [0] * count,
        "_offset": offsets,
        "country": np.array(load.COUNTRIES)[offsets % len(load.COUNTRIES)],
        "amount": offsets * 0.25,
        "active": offsets % 3 == 0,
        "signup_at": at,
        "plan": np.array(load.PLANS)[offsets % len(load.PLANS)],
        "seats": offsets % 500,
        "_extra": [None] * count,
    }
    schema = arrow_columns.arrow_schema(dataset.table_schema)
    return pa.table([pa.array(values[field.name], field.type) for field in schema], schema=schema)


def _staged(tenant: Tenant, dataset: Dataset, rows: pa.Table, location: str) -> StagedTable:
    name = (tenant.namespace, dataset.slug)
    where = iceberg.load_table(name, location).location()
    of_row, written = batch_files.days(rows), []
    for day in pc.unique(of_row).to_pylist():
        path = f"{where}/data/timestamp_day={day}/{parquet_files.token()}.parquet"
        file, content = parquet_files.encode(
            dataset, day, path, rows.filter(pc.equal(of_row, pa.scalar(day)))
        )
        object_store.put(path, content)
        written.append(file)
    table = StagedTable(
        tenant_id=tenant.tenant_id,
        dataset_id=dataset.dataset_id,
        slug=dataset.slug,
        table=name,
        old_location=location,
        new_location=location,
        snapshot_id=None,
        files=tuple(written),
        days=(),
    )
    return land.stage(table, "bench")


def measure(tenant: Tenant, times: int) -> Iterator[tuple[str, float, float, float]]:
    """Query, and its duration in milliseconds: the first time, p50 and p95 when warm."""
    middle = FIRST_DAY + timedelta(days=DAYS / 2)
    earlier = snapshots(tenant, load.DATASET, DAYS * COMMITS_A_DAY)[DAYS]
    requests: dict[str, tuple[int, dict[str, Any]]] = {
        "newest 100 rows": (100, {}),
        "newest 100 rows, 3 columns": (100, {"columns": ["timestamp", "country", "amount"]}),
        "100 rows of two days in the middle": (100, {"start": middle, "end": middle + timedelta(days=2)}),
        "newest 100 rows of an earlier snapshot": (100, {"snapshot_id": earlier.snapshot_id}),
        "newest 10,000 rows": (10_000, {}),
    }
    duckdb_pool.warm(limits())
    for label, (limit, how) in requests.items():
        spent = []
        for _ in range(times + _WARM_UP):
            began = time.perf_counter()
            assert preview(tenant, load.DATASET, limit, **how).num_rows == limit
            spent.append((time.perf_counter() - began) * 1_000)
        p50, p95 = np.percentile(spent[_WARM_UP:], [50, 95])
        yield label, spent[0], float(p50), float(p95)
