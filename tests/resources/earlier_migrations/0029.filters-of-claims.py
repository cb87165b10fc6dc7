"""Filters of the large runs of claims that there are."""

import struct
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest
from yoyo import step

LARGE_IDS = 262_144
BUCKET, PRINT_BITS = 8, 16

LARGE = "SELECT dataset_id, run FROM processed_event_ids WHERE ids >= %s ORDER BY dataset_id, run"
DIGESTS = "SELECT digests FROM processed_event_ids WHERE dataset_id = %s AND run = %s"
FILTER = "UPDATE processed_event_ids SET filter = %s WHERE dataset_id = %s AND run = %s"
COUNT = "SELECT count(*), count(filter) FROM processed_event_ids WHERE ids >= %s"


def fill(connection: Any) -> None:
    """Add the filters, the memory of one run at a time; counts them."""
    with connection.cursor() as cursor:
        cursor.execute(LARGE, [LARGE_IDS])
        large = cursor.fetchall()
    for row in large:
        with connection.cursor() as cursor:
            cursor.execute(DIGESTS, row)
            (packed,) = cursor.fetchone()
            words = np.frombuffer(packed, "<u8")
            cursor.execute(FILTER, [made(words[: len(words) // 2]), *row])
    with connection.cursor() as cursor:
        cursor.execute(COUNT, [LARGE_IDS])
        runs, filled = cursor.fetchone()
    if not runs == filled == len(large):
        raise RuntimeError(
            f"{len(large)} large runs of claims, {filled} of {runs} have a filter: nothing was changed"
        )


def made(heads: Any) -> bytes:
    """The filter of a run, as `tables/claim_filters.py` had it then."""
    first, last, below = int(heads[0]), int(heads[-1]), heads - heads[0]
    few = max(1, len(heads) // BUCKET).bit_length() - 1
    shift = min(max(PRINT_BITS, (last - first).bit_length() - few), 63)
    buckets = ((last - first) >> shift) + 1
    starts = np.searchsorted(below, np.arange(buckets, dtype=np.uint64) << np.uint64(shift))
    fences = np.append(starts, len(heads)).astype("<u4")
    prints = (below >> np.uint64(shift - PRINT_BITS)).astype("<u2")
    body = struct.pack("<3Q", first, last, shift) + fences.tobytes() + prints.tobytes()
    body += bytes(-len(body) % 8)
    return struct.pack("<Q", xxh3_64_intdigest(body)) + body


steps = [
    step("ALTER TABLE processed_event_ids NO FORCE ROW LEVEL SECURITY"),
    step(fill),
    step("ALTER TABLE processed_event_ids FORCE ROW LEVEL SECURITY"),
]
