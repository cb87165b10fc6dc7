"""Rows of versions from Arrow."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from pulse_pipelines.query.versions import _as_rows

MOMENT = datetime(2026, 11, 19, 10, 0, 0, 5, UTC)


def test_rows_are_those_that_arrow_gives() -> None:
    moments = [MOMENT, None, MOMENT + timedelta(days=40_000), datetime(1, 1, 1, tzinfo=UTC)]
    naive = [moment and moment.replace(tzinfo=None) for moment in moments]
    table = pa.table(
        {
            "id": ["a", "b", None, "d"],
            "at": pa.array(moments, pa.timestamp("us", "UTC")),
            "read_at": pa.array(naive, pa.timestamp("us")),
            "nested": [{"a": 1.5}, None, {"a": None}, {"a": 2.0}],
            "day": [MOMENT.date(), None, None, MOMENT.date()],
        }
    )
    rows = list(_as_rows(table))
    assert rows == table.to_pylist()
    assert [row["at"] and row["at"].isoformat() for row in rows] == [
        moment and moment.isoformat() for moment in moments
    ]
    assert list(_as_rows(table.slice(0, 0))) == []
