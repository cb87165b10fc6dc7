"""What the gate and settle cost a batch when a dataset has many claims already."""

from collections.abc import Iterator

import numpy as np
import psycopg
from rich.console import Console

from benchmarks import load
from benchmarks.steps import run_batch
from pulse_resources.settings import load_settings

BATCH = 10_000
TIMES = 7
# An index is built much faster than a row at a time; the primary key is back before anything is measured.
DROP = "ALTER TABLE processed_event_ids DROP CONSTRAINT IF EXISTS processed_event_ids_pkey"
FILL = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, partition, event_offset, event_id)
SELECT %(tenant)s, %(dataset)s, 1000, n, gen_random_uuid()::text
FROM generate_series(%(from)s::bigint, %(to)s::bigint - 1) n
"""
KEY = "ALTER TABLE processed_event_ids ADD PRIMARY KEY (dataset_id, event_id)"
FIND = "SELECT dataset_id FROM pdm_datasets WHERE tenant_id = %s"


def measure(console: Console, levels: list[int]) -> Iterator[tuple[int, float, float]]:
    """Claims before the batches, then the median seconds of gate and settle for 10,000 new events."""
    (tenant,) = load.make_tenants(1)
    settings = load_settings().postgres
    there = 0
    with psycopg.connect(settings.superuser_url(settings.database), autocommit=True) as connection:
        (dataset,) = connection.execute(FIND, [tenant.tenant_id]).fetchone() or [None]
        for level in levels:
            with console.status(f"{level:,} claims"):
                connection.execute(DROP)
                span = {"from": there, "to": level}
                connection.execute(FILL, {"tenant": tenant.tenant_id, "dataset": dataset} | span)
                connection.execute(KEY)
                connection.execute("VACUUM ANALYZE processed_event_ids")
                connection.execute("CHECKPOINT")
                there = level
            spent = []
            for _ in range(TIMES):
                load.send(console, [tenant], BATCH)
                spent.append(run_batch([tenant]))
            gate, settle = (float(np.median([s[n] for s in spent[1:]])) for n in ("dedup_gate", "settle"))
            yield level, gate, settle
