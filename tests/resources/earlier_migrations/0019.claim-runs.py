"""Claims as runs: sorted digests of event ids, 16 bytes each, instead of a row and an index entry per id."""

from typing import Any

import numpy as np
from xxhash import xxh3_128_digest
from yoyo import step

PAGE = 50_000
RUN_IDS = 1_048_576

CREATE = """
-- Of a dataset's digests: nobody else may choose ids that collide.
ALTER TABLE pdm_datasets ADD COLUMN claim_seed bigint NOT NULL
    DEFAULT ('x' || right(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
ALTER TABLE processed_event_ids RENAME TO claimed_ids;
ALTER TABLE claimed_ids NO FORCE ROW LEVEL SECURITY;
ALTER TABLE pdm_datasets NO FORCE ROW LEVEL SECURITY;
CREATE SEQUENCE claim_runs;
GRANT USAGE ON SEQUENCE claim_runs TO pulse_pipeline;

-- A run of claims: these event ids of the dataset have rows.
CREATE TABLE processed_event_ids (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL,
    run        bigint NOT NULL,
    newest     bigint NOT NULL,   -- the latest addition in it: itself, unless it was merged by upkeep
    ids        integer NOT NULL CHECK (ids > 0),
    ends       bigint[] NOT NULL, -- by partition: the offset after the last event that they are of
    claimed_on date NOT NULL DEFAULT current_date,
    digests    bytea STORAGE EXTERNAL NOT NULL CHECK (octet_length(digests) = 16 * ids),
    PRIMARY KEY (dataset_id, run)
);
CREATE INDEX processed_event_ids_tenant ON processed_event_ids (tenant_id, claimed_on);
"""
SECURE = """
DROP TABLE claimed_ids;
ALTER TABLE pdm_datasets FORCE ROW LEVEL SECURITY;
ALTER TABLE processed_event_ids ENABLE ROW LEVEL SECURITY;
ALTER TABLE processed_event_ids FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON processed_event_ids
    USING (tenant_id = app_tenant()) WITH CHECK (tenant_id = app_tenant());
GRANT SELECT, INSERT, DELETE ON processed_event_ids TO pulse_pipeline;
"""
# Nobody asks for the claims of a dataset that was deleted.
DATASETS = "SELECT tenant_id, dataset_id, claim_seed FROM pdm_datasets ORDER BY dataset_id"
IDS = """
SELECT event_id, partition, event_offset, claimed_on FROM claimed_ids
WHERE dataset_id = %s ORDER BY claimed_on
"""
ADD = """
INSERT INTO processed_event_ids (tenant_id, dataset_id, run, newest, ids, ends, claimed_on, digests)
SELECT %s, %s, run, run, %s, %s, %s, %s FROM nextval('claim_runs') run
"""
COUNTS = """
SELECT (SELECT count(*) FROM claimed_ids JOIN pdm_datasets USING (dataset_id)),
    (SELECT coalesce(sum(ids), 0) FROM processed_event_ids)
"""


def convert(connection: Any) -> None:
    """Make runs of all rows, the memory of one run at a time; compares their numbers."""
    with connection.cursor() as cursor:
        cursor.execute(DATASETS)
        datasets = cursor.fetchall()
    for tenant_id, dataset_id, seed in datasets:
        with connection.cursor(name="ids") as ids:
            ids.execute(IDS, [dataset_id])
            digests, ends = bytearray(), {}
            while page := ids.fetchmany(PAGE):
                for event_id, partition, offset, day in page:
                    claimed_on = day  # ascending
                    digests += xxh3_128_digest(event_id.encode(), seed & (2**64 - 1))
                    ends[partition] = max(ends.get(partition, 0), offset + 1)
                if len(digests) >= RUN_IDS * 16:
                    _add(connection, tenant_id, dataset_id, digests, ends, claimed_on)
                    digests, ends = bytearray(), {}
            if digests:
                _add(connection, tenant_id, dataset_id, digests, ends, claimed_on)
    with connection.cursor() as cursor:
        cursor.execute(COUNTS)
        before, after = cursor.fetchone()
    if before != after:
        raise RuntimeError(f"{before} claims became {after}: nothing was migrated")


def _add(
    connection: Any, tenant_id: Any, dataset_id: Any, digests: bytearray, ends: dict[int, int], day: Any
) -> None:
    words = np.frombuffer(bytes(digests), ">u8").reshape(-1, 2)
    order = np.lexsort((words[:, 1], words[:, 0]))
    packed = words[order].astype("<u8").T.tobytes()  # all first halves, then all second ones
    by_partition = [ends.get(partition, 0) for partition in range(max(ends) + 1)]
    with connection.cursor() as cursor:
        cursor.execute(ADD, [tenant_id, dataset_id, len(words), by_partition, day, packed])


steps = [step(CREATE), step(convert), step(SECURE)]
