"""Descriptions of the files that a task wrote, which are in no table yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from uuid import UUID


@dataclass(frozen=True)
class Metrics:
    """Column statistics of a Parquet file, by Iceberg field id, for its manifest entry."""

    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


Packed = bytes


@dataclass(frozen=True)
class StateFrame:
    """The newest event of each key in a file, for a state of its dataset (see `states.state_keys`)."""

    state_id: int
    packed: Packed
    """As an Arrow stream."""
    windows: Packed | None = None
    """The file's buckets, if the state has windows (see `states.window_buckets`)."""


@dataclass(frozen=True)
class CandidateFile:
    """A Parquet file of one dataset and day: written, but in no table yet."""

    tenant_id: UUID
    dataset_id: UUID
    day: date
    path: str
    rows: int
    bytes: int
    metrics: Metrics
    offsets: Mapping[int, tuple[int, int]]
    """First and last offset of its rows, by topic partition."""
    positions: frozenset[int] | None = None
    """All positions of a small file (`parquet_files.position`): finding a row need not read the file."""
    copies: int = 0
    """Number of duplicates of this day left out of the file, see `ingest.stages.TopicDrained`."""
    values: Mapping[int, Packed] = field(default_factory=dict)
    """The packed values of entities' versions, by index (see `index_runs.Values`)."""
    state: StateFrame | None = None
    """The newest events, if the dataset has a state."""


@dataclass(frozen=True)
class RawPart:
    """The events of one day in a raw object: a separate gzip member."""

    path: str
    """Path of the object, which has a part for each day."""
    slug: str
    day: date
    """Day of the events' timestamps; of events without a row: of their receipt."""
    events: int
    start: int
    """Offset in the object, in bytes."""
    bytes: int
