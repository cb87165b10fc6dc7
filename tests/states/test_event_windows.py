"""Buckets of windows: those of a plain model, with sums that have no order and no rounding."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import uuid4

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.moments import EPOCH
from pulse_pipelines.domain.windows import AHEAD_S, minute, plain
from pulse_pipelines.states import state_keys, window_buckets
from pulse_pipelines.tables.arrow_streams import unpacked

NOW = datetime(2026, 11, 25, 10, tzinfo=UTC)
DATASET = Dataset(
    *(uuid4(), uuid4(), "orders", "orders", "pulse://any/orders/1", "{}", "{}", "refuse", NOW, 1),
    state=(1, "key"),
    windows=("amount", "count"),
)
SOME = st.sampled_from([0.1, 0.2, 12.34, 1e-7, 1e15, 1e300, -1e300])
DOUBLES = SOME | st.floats(allow_nan=False, allow_infinity=False)
ROW = st.tuples(
    st.sampled_from(["a", "b", "é", None, "x" * 600]),
    st.integers(-3 * 60, 2 * AHEAD_S),
    st.none() | DOUBLES,
    st.none() | st.integers(-(2**63), 2**63 - 1),
)


def frames(rows: list[Any]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Buckets as `frame` makes them, by key and minute."""
    moments = [NOW + timedelta(seconds=second) for _, second, *_ in rows]
    table = pa.table(
        {
            "key": pa.array([key for key, *_ in rows], pa.string()),
            "timestamp": pa.array(moments, pa.timestamp("us", "UTC")),
            "ingested_at": pa.array([NOW] * len(rows), pa.timestamp("us", "UTC")),
            "amount": pa.array([amount for *_, amount, _ in rows], pa.float64()),
            "count": pa.array([count for *_, count in rows], pa.int64()),
        }
    )
    fitting, keys = state_keys.with_keys("key", table)
    unpacked_rows = unpacked(window_buckets.frame(DATASET, keys, fitting)).to_pylist()
    return {
        (row["key"], row["minute"]): (
            *(row[name] for name in ("events", "first_at", "last_at")),
            *(Fraction(row[name]) for name in ("s0", "s1")),
        )
        for row in unpacked_rows
    }


def model(rows: list[Any]) -> dict[tuple[str, int], tuple[Any, ...]]:
    buckets: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for key, second, *numbers in rows:
        if key is not None and len(key) <= 512 and second <= AHEAD_S:
            at = NOW + timedelta(seconds=second)
            buckets[key, minute(at)].append(((at - EPOCH) // timedelta(microseconds=1), *numbers))
    return {
        place: (
            *(len(of), min(at for at, *_ in of), max(at for at, *_ in of)),
            sum(Fraction(repr(amount)) for _, amount, _ in of if amount is not None),
            sum(Fraction(count) for *_, count in of if count is not None),
        )
        for place, of in buckets.items()
    }


@pytest.mark.parametrize("amount", [1e-77, 4.7e-135, 5e-324, 1e-12, 0.5])
def test_a_small_number_is_part_of_the_sum(amount: float) -> None:
    rows = [("a", 0, amount, None), ("a", 0, 0.0, None)]
    assert frames(rows) == model(rows)


@hypothesis.settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=12))
def test_buckets_are_those_of_a_plain_model(rows: list[Any]) -> None:
    assert frames(rows) == model(rows)


def test_a_sum_is_shown_as_a_number_without_needless_zeros() -> None:
    shown = {"12.500": "12.5", "100": "100", "0.000": "0", "1E+3": "1000", "-0.10": "-0.1"}
    assert {text: plain(Decimal(text)) for text in shown} == shown
