"""Heads: of each entity the newest version, in however many runs."""

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from pulse_pipelines.entities import heads
from pulse_pipelines.entities.heads import FAN_IN, Heads, Log
from pulse_pipelines.tables.digests import Digests

KNOWN = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6), max_size=6
)
"""Appends: of each version its entity and its state."""


def versions(of: list[tuple[int, int]], before: int) -> Heads:
    ids, states = (np.array([pair[n] for pair in of], np.uint64) for n in (0, 1))
    return Heads(Digests(ids, ids * 7), Digests(states, states), np.arange(before + 1, before + 1 + len(of)))


@given(KNOWN)
def test_a_log_has_the_newest_state_of_each_entity_after_any_merges(
    appends: list[list[tuple[int, int]]],
) -> None:
    log, expected = Log(1, 0, []), {}
    for number, of in enumerate(appends):
        appended = versions(of, log.updated)
        expected |= {entity: (state, log.updated + n) for n, (entity, state) in enumerate(of, 1)}
        added = heads.append(log, appended, np.arange(len(of)))
        remaining_runs = [(run, run_heads) for run, run_heads in log.runs if run not in added.replaces]
        log = Log(1, log.updated + len(of), [*remaining_runs, (number, Heads.unpacked(added.heads.packed()))])
        assert len(log.runs) <= 3 * FAN_IN
    entities = np.arange(7, dtype=np.uint64)
    states, updated = Log(1, log.updated, log.runs[::-1]).find_states(Digests(entities, entities * 7))
    assert {
        int(entity): (int(state), int(at))
        for entity, state, at in zip(entities, states.heads, updated, strict=True)
        if at
    } == expected


def test_places_go_by_position() -> None:
    added = heads.append(Log(1, 10, []), versions([(1, 1), (2, 1), (1, 2)], 10), np.array([30, 10, 20]))
    assert added.places.numbers(np.array([10, 20, 30])).tolist() == [11, 12, 13]


def test_a_state_is_the_hash_and_nothing_where_deleted() -> None:
    states = heads.states(pa.table({"_hash": pa.chunked_array([["00" * 15 + "01", None], ["ff" * 16]])}))
    assert states.heads.tolist() == [0, 0, 2**64 - 1]
    assert states.tails.tolist() == [1, 0, 2**64 - 1]
