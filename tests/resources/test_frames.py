"""Frames hold what Spark tasks get and give, and say so when they cannot."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.backfill.rebuild import RebuildTask, Rebuilt
from pulse_pipelines.ingest.drain import DrainTask
from pulse_pipelines.ingest.land import LandTask
from pulse_pipelines.ingest.stages import Failure, LandingFailed, StagedTable, TopicDrained
from pulse_resources import frames


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Inner:
    number: int
    name: str | None


@dataclass(frozen=True)
class Everything:
    truth: bool
    number: int
    fraction: float
    text: str
    content: bytes
    uuid: UUID
    day: date
    moment: datetime
    span: timedelta
    colour: Colour
    inner: Inner
    maybe: Inner | None
    pair: tuple[int, str]
    row: tuple[Inner, ...]
    offsets: Sequence[int]
    known: frozenset[int] | None
    by_id: Mapping[UUID, Mapping[int, list[int]]]
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)


INT64 = st.integers(-(2**63), 2**63 - 1)
INNER = st.builds(Inner, INT64, st.none() | st.text())
EVERYTHING = st.builds(
    Everything,
    truth=st.booleans(),
    number=INT64,
    fraction=st.floats(allow_nan=False),
    text=st.text(),
    content=st.binary(),
    uuid=st.uuids(),
    day=st.dates(),
    moment=st.datetimes(timezones=st.just(UTC)),
    span=st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)),
    colour=st.sampled_from(Colour),
    inner=INNER,
    maybe=st.none() | INNER,
    pair=st.tuples(INT64, st.text()),
    row=st.lists(INNER).map(tuple),
    offsets=st.lists(INT64),
    known=st.none() | st.frozensets(INT64),
    by_id=st.dictionaries(st.uuids(), st.dictionaries(INT64, st.lists(INT64))),
    bounds=st.dictionaries(INT64, st.tuples(INT64, INT64)),
)


@given(st.lists(EVERYTHING | INNER, max_size=4))
def test_values_of_a_frame_equal_its_rows(rows: list[Any]) -> None:
    kinds = [Everything, Inner]
    frame = frames.frame(rows, kinds)
    assert frame.schema == frames.schema(kinds)
    assert frames.values(frame, kinds) == rows


TASKS = [DrainTask, LandTask, RebuildTask]
OUTCOMES = [TopicDrained, Failure, StagedTable, LandingFailed, Rebuilt]


@pytest.mark.parametrize("kind", [*TASKS, *OUTCOMES])
def test_all_that_tasks_get_and_give_has_a_schema(kind: type) -> None:
    (column,) = frames.schema([kind])
    assert pa.types.is_struct(column.type)
    assert [member.name for member in column.type] == [member.name for member in dataclasses.fields(kind)]


def test_a_type_that_no_frame_knows_is_refused() -> None:
    @dataclass
    class Odd:
        number: complex

    with pytest.raises((TypeError, KeyError)):
        frames.schema([Odd])
