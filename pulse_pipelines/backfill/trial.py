"""The trial of a schema: which events of a day it would refuse, if the dataset followed it."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice

from pulse_pipelines import registry
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.domain.schemas.compatibility import Incompatibility, incompatibilities
from pulse_pipelines.domain.schemas.schema import SchemaUri, check_document
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.conform import DeadLetter, TopicConformer
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.limits import event_limits
from pulse_resources import postgres
from pulse_resources.settings import load_settings

SHOWN = 3
PARTS = """
SELECT path, start, bytes FROM raw_objects
WHERE slug = %s AND day = %s AND removed_at IS NULL ORDER BY path, start
"""
# An interrupted erasure may have left erased lines in the raw zone.
ERASED = """
SELECT 1 FROM erased_offsets WHERE partition = %s AND offsets @> %s::int8
"""


@dataclass(frozen=True)
class Refused:
    event_id: str | None
    reason: str
    pointer: str | None
    detail: str


@dataclass(frozen=True)
class Trial:
    """The result of a trial: counts of a day's events, re-deliveries included."""

    day: date
    events: int
    refused: int
    """Events that are valid by the dataset's schema, but not by this one."""
    refused_already: int
    """Events that are valid by neither."""
    examples: tuple[Refused, ...]
    """Some of the `refused` events."""
    complete: bool
    """Whether all events of the day were validated."""
    incompatibilities: tuple[Incompatibility, ...]
    """Why the dataset cannot move to the schema, whatever its events are."""


def try_schema(
    tenant: Tenant, slug: str, document: str, day: date, most: int, seconds: float = math.inf
) -> Trial:
    """Validate the events of a day as if the dataset followed `document`; nothing is written.

    Args:
        most: maximum number of events to validate.
        seconds: after these it validates no further events, and is not complete.

    Raises:
        UserError: the schema could not be published.
        NotFound: the tenant has no such dataset.
        OSError: the raw zone cannot be read.
    """
    candidate = registry.checked_schema(document)
    dataset = registry.find_dataset(tenant, slug)
    now, then = _conformer(tenant, dataset), _conformer(tenant, _following(dataset, document))
    received = _received(tenant, slug, day)
    events = refused = already = 0
    examples: list[Refused] = []
    rows, end = load_settings().ingest.chunk_rows, time.monotonic() + seconds
    while time.monotonic() < end and (chunk := list(islice(received, min(rows, most - events)))):
        events += len(chunk)
        letters = then.chunk(chunk).dead_letters
        refused_before = {
            letter.message for letter in now.chunk([letter.message for letter in letters]).dead_letters
        }
        newly = [letter for letter in letters if letter.message not in refused_before]
        refused, already = refused + len(newly), already + len(refused_before)
        examples += _shown(tenant, newly, SHOWN - len(examples))
    return Trial(
        day=day,
        events=events,
        refused=refused,
        refused_already=already,
        examples=tuple(examples),
        complete=next(received, None) is None,
        incompatibilities=tuple(incompatibilities(check_document(dataset.document), candidate)),
    )


def _following(dataset: Dataset, document: str) -> Dataset:
    """The dataset as if `document` were the next version of its schema; events may name earlier ones."""
    uri = SchemaUri.parse(dataset.schema_uri)
    moved = replace(
        dataset,
        schema_uri=str(replace(uri, version=max(dataset.documents) + 1)),
        document=document,
        earlier=tuple(dataset.documents.items()),
    )
    return replace(moved, table_schema=table_schema(columns(moved.schema), dataset.kind).model_dump_json())


def _conformer(tenant: Tenant, dataset: Dataset) -> TopicConformer:
    limits = replace(event_limits(), batch_validation_seconds=math.inf)  # the caller alone spends the time
    return TopicConformer(Scope(tenant, (dataset,)), "trial", limits)


def _received(tenant: Tenant, slug: str, day: date) -> Iterator[Message]:
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        parts = connection.execute(PARTS, [slug, day]).fetchall()
    for path, start, length in parts:
        yield from raw_zone.messages(raw_zone.part(path, start, length))


def _shown(tenant: Tenant, letters: Sequence[DeadLetter], most: int) -> list[Refused]:
    """The first `most` of these, without erased events."""
    examples: list[Refused] = []
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        for message, _, event_id, rejected in letters:
            if len(examples) >= most:
                break
            if connection.execute(ERASED, [message.partition, message.offset]).fetchone() is None:
                examples.append(Refused(event_id, rejected.reason.value, rejected.pointer, rejected.detail))
    return examples
