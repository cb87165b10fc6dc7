"""Column statistics of candidate files are what pyiceberg makes of the same footer."""

import io
import random
import uuid
from datetime import UTC, datetime

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from support.ingest import SCHEMA, event

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.tables import parquet_files
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_pipelines.tables.raw_zone import LINE, Message


def rows(countries: list[str], tenant: Tenant) -> tuple[Dataset, pa.Table]:
    schema = new_table_metadata(
        table_schema(columns(SCHEMA)), PartitionSpec(), UNSORTED_SORT_ORDER, "s3://x/y"
    ).schema()
    dataset = Dataset(
        uuid.uuid4(),
        tenant.tenant_id,
        "orders",
        "orders",
        "pulse://t/orders/1",
        orjson.dumps(SCHEMA).decode(),
        schema.model_dump_json(),
        "refuse",
        datetime.now(UTC),
        7,
    )
    conformer = TopicConformer(Scope(tenant, (dataset,)), "batch", UNLIMITED)
    draw = random.Random(7)  # noqa: S311 - not a secret
    messages = [
        Message(
            n % 2,
            n,
            1_700_000_000_000 + n,
            event(
                f"e{n}",
                country=country,
                amount=draw.uniform(-9, 9),
                active=bool(n % 3),
                address={"zip": str(n)},
                **({"count": n - 5} if n % 2 else {}),
            ),
        )
        for n, country in enumerate(countries)
    ]
    conformed = conformer.chunk(messages)
    assert not conformed.dead_letters
    return dataset, conformed.tables["orders"].drop_columns([LINE])


@pytest.mark.parametrize(
    "countries",
    [
        ["DE"],
        ["DE", "FR", "", "a country with a name beyond sixteen characters"],
        ["\U0010ffff" * 20, "ä" * 17],
        ["x"] * (parquet_files.SMALL_FILE_ROWS + 1),
    ],
    ids=["one", "truncated", "unicode", "large"],
)
def test_metrics_are_those_of_pyiceberg(countries: list[str]) -> None:
    dataset, table = rows(countries, Tenant(uuid.uuid4(), "t"))
    day = datetime(2026, 11, 19, tzinfo=UTC).date()
    candidate, content = parquet_files.encode(dataset, day, "s3://x/y.parquet", table)
    footer = pq.read_metadata(io.BytesIO(content.to_pybytes()))
    schema = Schema.model_validate_json(dataset.table_schema)
    expected = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()
    assert candidate.rows == expected.pop("record_count") == len(countries)
    for name, value in expected.items():
        ours = getattr(candidate.metrics, name)
        assert (list(ours) if name == "split_offsets" else dict(ours)) == value, name


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("a" * 16, "a" * 16),
        ("a" * 17, "a" * 15 + "b"),
        ("a" * 15 + "\ud7ffz", "a" * 15 + "\ue000"),
        ("a" * 14 + "\ud7ff\U0010ffffz", "a" * 14 + "\ue000\U0010ffff"),
        ("\U0010ffff" * 17, None),
    ],
)
def test_a_bound_of_texts_is_above_them_and_a_text(text: str, bound: str | None) -> None:
    """The character after U+D7FF is half of a surrogate pair: its file could not be written at all."""
    dataset, table = rows([text, "DE"], Tenant(uuid.uuid4(), "t"))
    day = datetime(2026, 11, 19, tzinfo=UTC).date()
    candidate, _ = parquet_files.encode(dataset, day, "s3://x/y.parquet", table)
    field = Schema.model_validate_json(dataset.table_schema).find_field("country").field_id
    upper = dict(candidate.metrics.upper_bounds).get(field)
    assert upper == (None if bound is None else bound.encode())
    assert upper is None or upper >= text.encode()
