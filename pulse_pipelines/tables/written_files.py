"""What a task says of the files that it wrote: no table has them yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from uuid import UUID


@dataclass(frozen=True)
class Metrics:
    """Column statistics of a Parquet file, by Iceberg field id, as the manifest wants them."""

    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


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
    """Of a small file, all positions (`parquet_files.position`): what is in it is known without reading."""
    copies: int = 0
    """Rows of this day that were left out, see `ingest.results.TopicDrained`."""


@dataclass(frozen=True)
class RawPart:
    """The events of one day in a raw object: a gzip member of its own."""

    path: str
    """Of the object, which has a part for each day."""
    slug: str
    day: date
    """Of the events; of what is no row: when it was received."""
    events: int
    start: int
    """Byte of the object at which it begins."""
    bytes: int
