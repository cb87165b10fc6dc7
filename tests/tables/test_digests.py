"""Digests: sorted columns of 16 bytes against Python's own sets, with many halves in common."""

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st
from xxhash import xxh3_128_digest

from pulse_pipelines.tables.digests import Digests

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30)
"""So few different halves that most digests share one with others."""
EDGES = st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])
LARGE = st.lists(st.tuples(EDGES, EDGES), max_size=12)


def digests(pairs: list[tuple[int, int]]) -> Digests:
    return Digests(*(np.array([pair[n] for pair in pairs], np.uint64) for n in (0, 1)))


def pairs(of: Digests) -> list[tuple[int, int]]:
    return list(zip(of.heads.tolist(), of.tails.tolist(), strict=True))


@given(PAIRS | LARGE, st.randoms())
def test_the_order_is_that_of_both_halves_and_then_of_positions(raw_digests, random) -> None:
    positions = list(range(len(raw_digests)))
    random.shuffle(positions)
    order = digests(raw_digests).order(np.array(positions, np.int64)).tolist()
    assert [(*raw_digests[n], positions[n]) for n in order] == sorted(
        (*pair, at) for pair, at in zip(raw_digests, positions, strict=True)
    )


@given(PAIRS | LARGE)
def test_a_run_has_each_once(raw_digests) -> None:
    assert pairs(digests(raw_digests).run()) == sorted(set(raw_digests))
    ascending = digests(sorted(raw_digests))
    repeated = Counter(raw_digests) - Counter(set(raw_digests))
    assert Counter(pairs(ascending[ascending.repeats()])) == repeated


@given(PAIRS | LARGE, PAIRS | LARGE)
def test_shared_digests_are_selected_whichever_run_is_longer(some, more) -> None:
    first, run = digests(some).run(), digests(more).run()
    assert pairs(first[first.within(run)]) == sorted(set(some) & set(more))
    assert pairs(run[run.within(first)]) == sorted(set(some) & set(more))


@given(PAIRS | LARGE, PAIRS)
def test_packed_digests_are_unpacked_unchanged(some, more) -> None:
    assert pairs(Digests.unpacked(digests(some).packed())) == some
    assert pairs(Digests.joined([digests(some), digests(more)])) == some + more
    assert pairs(Digests.joined([])) == []


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.integers(-(2**63), 2**63 - 1))
def test_a_digest_is_the_hash_under_the_seed(ids, seed) -> None:
    expected = [xxh3_128_digest(event_id.encode(), seed % 2**64) for event_id in ids]
    for sequence in (ids, pa.array(ids, pa.string()), pa.chunked_array([ids, ids[:0]], pa.string())):
        assert Digests.of(sequence, seed).blobs().to_pylist() == expected
    words = [(int.from_bytes(digest[:8]), int.from_bytes(digest[8:])) for digest in expected]
    assert pairs(Digests.of(ids, seed)) == words, "sorted as the bytes are"
