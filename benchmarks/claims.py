"""Cost of gate and settle for a batch when a dataset has many claims, and the claims' size."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import psycopg
from rich.console import Console

from benchmarks import load
from benchmarks.steps import run_batch
from pulse_pipelines.claims import claim_filters
from pulse_pipelines.claims.claim_runs import LARGE_IDS, MERGED_IDS
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables.digests import Digests
from pulse_resources.settings import load_settings

BATCH = 10_000
TIMES = 7
FIND = "SELECT dataset_id FROM pdm_datasets WHERE tenant_id = %s"
# As `claims.merge_claims` leaves them: pieces of one run, each a range of digests.
FILL = """
INSERT INTO processed_event_ids (run, newest, tenant_id, dataset_id, ids, ends, digests, filter)
SELECT run, %s, %s, %s, %s, '{}', %b, %b FROM nextval('claim_runs') run
"""
NEWEST = "SELECT nextval('claim_runs')"
SIZE = "SELECT pg_total_relation_size('processed_event_ids'), sum(ids) FROM processed_event_ids"


@dataclass(frozen=True)
class ClaimMeasurements:
    """Measurements of batches of `BATCH` new events."""

    ids: int
    """Ids claimed before."""
    first_gate: float
    """Gate seconds of the first batch, with no file of the runs cached locally."""
    gate: float
    """Median gate seconds of the following batches."""
    settle: float
    bytes_per_id: float
    """Bytes per id in Postgres."""


def measure(console: Console, levels: list[int]) -> Iterator[ClaimMeasurements]:
    """Measure batches into a dataset with a growing number of claims, level by level."""
    (tenant,) = load.make_tenants(1)
    settings, level_before = load_settings(), 0
    for level in levels:
        with console.status(f"{level:,} claims"):
            size = fill(tenant, level - level_before)
            level_before = level
            shutil.rmtree(settings.home / "claims", ignore_errors=True)
        spent = []
        for _ in range(TIMES):
            load.send(console, [tenant], BATCH)
            spent.append(run_batch([tenant]))
        gate, settle = (float(np.median([s[n] for s in spent[1:]])) for n in ("dedup_gate", "settle"))
        yield ClaimMeasurements(level, spent[0]["dedup_gate"], gate, settle, size)


def fill(tenant: Tenant, ids: int) -> float:
    """Add claims to the tenant's dataset; returns the bytes per id now in Postgres."""
    settings, draw = load_settings(), np.random.default_rng()
    pieces = max(1, ids // MERGED_IDS)
    span = 2**64 // pieces
    with psycopg.connect(
        settings.postgres.superuser_url(settings.postgres.database), autocommit=True
    ) as connection:
        (dataset,) = connection.execute(FIND, [tenant.tenant_id]).fetchone() or [None]
        (newest,) = connection.execute(NEWEST).fetchone() or [None]
        for number in range(pieces):
            ids_per_piece = ids // pieces
            heads = np.sort(draw.integers(number * span, (number + 1) * span - 1, ids_per_piece, np.uint64))
            run = Digests(heads, draw.integers(0, 2**64 - 1, ids_per_piece, np.uint64))
            filter_of = claim_filters.make(run) if ids_per_piece >= LARGE_IDS else None
            connection.execute(
                FILL, [newest, tenant.tenant_id, dataset, ids_per_piece, run.packed(), filter_of]
            )
        connection.execute("CHECKPOINT")
        size, ids_stored = connection.execute(SIZE).fetchone() or (0, 1)
    return float(size / ids_stored)
