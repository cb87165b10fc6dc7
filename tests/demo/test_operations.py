"""The demo's verdict on a table: what a run found has to be what was done to the source, row by row."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pulse_api.demo.operations import TableLine
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities.syncs import Sync

AT = datetime(2026, 11, 25, tzinfo=UTC)
FIRST = Sync(1, "planes", "a", True, SyncState.DONE, 1, 9, 0, 0, 0, 0, 9, 0, None, AT, AT, AT)
SECOND = replace(FIRST, sync_id=2, created=1, changed=2, unchanged=4, deleted=3)
LINE = TableLine("planes", 7, (FIRST, SECOND), {"written": 3, "deleted": 3}, 0)


def test_a_table_is_balanced_when_all_runs_have_the_expected_counts() -> None:
    assert LINE.balanced
    again = replace(SECOND, created=0, changed=3)
    assert replace(LINE, runs=(FIRST, again)).balanced, "a row that comes back is a change of its entity"
    assert LINE.document == {
        "rows": 7,
        "created": 10,
        "changed": 2,
        "unchanged": 4,
        "deleted": 3,
        "differing": 0,
        "balanced": True,
    }


@pytest.mark.parametrize(
    "wrong",
    [{"changed": 1}, {"deleted": 2}, {"refused": 1}, {"state": SyncState.HELD}, {"state": SyncState.FAILED}],
)
def test_a_table_is_not_balanced_when_a_run_has_other_counts(wrong: dict[str, object]) -> None:
    assert not replace(LINE, runs=(FIRST, replace(SECOND, **wrong))).balanced


def test_a_table_is_not_balanced_when_rows_differ() -> None:
    assert not replace(LINE, differing=1).balanced
