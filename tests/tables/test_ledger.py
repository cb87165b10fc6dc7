"""The ledger's invariant: each drained offset landed, is a duplicate, or is a dead letter. No services."""

import itertools

import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.tables.ledger import RangeAccounting, runs
from pulse_resources.errors import Terminal


@pytest.mark.parametrize("counts", [(3, 1, 1, 0), (3, 2, 1, 1), (0, 1, 0, -1), (2, 3, -1, 0), (1, 0, 0, 0)])
def test_counts_that_do_not_add_up_settle_nothing(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(Terminal, match="nothing was settled"):
        RangeAccounting(*counts)


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_counts_that_add_up_are_an_outcome(parts: list[int]) -> None:
    assert RangeAccounting(sum(parts), *parts).drained == sum(parts)


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_offsets_again_and_no_two_of_them_touch(offsets: set[int]) -> None:
    pieces = list(runs(sorted(offsets)))
    assert [offset for r in pieces for offset in range(r.lower, r.upper)] == sorted(offsets)
    assert all(before.upper < after.lower for before, after in itertools.pairwise(pieces))
