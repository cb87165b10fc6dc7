"""Integers of a file whose column has become one of numbers keep their digits."""

import json
from typing import Any

import pyarrow as pa
import pytest

from pulse_pipelines.tables.rewrite_file import fitted

EXACT, BEYOND = 2**53, 2**53 + 1
DOUBLE, LONG, EXTRA = pa.float64(), pa.int64(), pa.field("_extra", pa.string())


def struct(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("n", kind), ("t", pa.string())])


@pytest.mark.parametrize(
    ("before", "after", "value", "extra", "expected"),
    [
        (LONG, DOUBLE, EXACT, None, None),
        (LONG, DOUBLE, BEYOND, None, {"x": BEYOND}),
        (LONG, DOUBLE, 2**62, None, None),
        (LONG, DOUBLE, 2**63 - 1, {"y": 1}, {"y": 1, "x": 2**63 - 1}),
        (LONG, DOUBLE, -(2**63), None, None),
        (LONG, DOUBLE, None, {"y": None}, {"y": None}),
        (LONG, LONG, BEYOND, None, None),
        (pa.list_(LONG), pa.list_(DOUBLE), [1, BEYOND, None], None, {"x": [None, BEYOND, None]}),
        (
            struct(LONG),
            struct(DOUBLE),
            {"n": BEYOND, "t": "a"},
            {"x": {"z": 1}},
            {"x": {"z": 1, "n": BEYOND}},
        ),
        (
            pa.list_(struct(LONG)),
            pa.list_(struct(DOUBLE)),
            [{"n": 1, "t": None}, {"n": BEYOND, "t": "a"}],
            {"x": [{"z": 1}, None]},
            {"x": [{"z": 1}, {"n": BEYOND}]},
        ),
    ],
)
def test_an_integer_that_no_double_holds_stays_in_the_rest(
    before: pa.DataType, after: pa.DataType, value: Any, extra: Any, expected: Any
) -> None:
    text = None if extra is None else json.dumps(extra)
    rows = pa.record_batch(
        [pa.array([value, None], before), pa.array([text, None], pa.string())], ["x", "_extra"]
    )
    table = fitted(rows, pa.schema([pa.field("x", after), EXTRA]))
    extras = table.column("_extra").to_pylist()
    assert extras[1] is None
    assert (None if extras[0] is None else json.loads(extras[0])) == expected
    assert table.column("x").type == after


def test_digits_that_the_rest_has_already_stay_as_they_are() -> None:
    rows = pa.record_batch([pa.array([BEYOND]), pa.array(['{"y":1.10}'])], ["data_id", "_extra"])
    table = fitted(rows, pa.schema([pa.field("data_id", DOUBLE), EXTRA]))
    assert table.column("_extra").to_pylist() == ['{"y":1.10,"id":9007199254740993}']


def test_rows_of_which_the_rest_is_not_read_are_just_cast() -> None:
    rows = pa.record_batch([pa.array([BEYOND])], ["x"])
    assert fitted(rows, pa.schema([pa.field("x", DOUBLE)])).column("x").to_pylist() == [float(BEYOND)]
