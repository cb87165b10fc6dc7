"""Rows of a day from received events: by the requested schema version, or by an earlier one if need be."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.event_limits import UNLIMITED, EventLimits
from pulse_pipelines.domain.schemas.schema import SchemaUri
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.ingest.batch_files import days
from pulse_pipelines.ingest.conform import DeadLetter, TopicConformer
from pulse_pipelines.tables import arrow_columns
from pulse_pipelines.tables.iceberg_schema import table_schema
from pulse_pipelines.tables.raw_zone import LINE, Message
from pulse_pipelines.tables.rewrite_file import fitted


class DayRows:
    """Conforms events of one dataset to rows of one day of its table.

    Args:
        version: of the dataset's schema; events that name none follow it.
        limits: for events that did not land before.
    """

    def __init__(
        self, tenant: Tenant, dataset: Dataset, day: date, version: int, limits: EventLimits
    ) -> None:
        self._tenant = tenant
        self._dataset = dataset
        self._day = day
        self._limits = limits
        self._version = version
        self._schema = arrow_columns.arrow_schema(dataset.table_schema)
        self._as_of = {number: as_of_version(dataset, number) for number in dataset.documents}

    def conformed(self, batch_id: str, messages: Sequence[Message]) -> tuple[pa.Table, list[DeadLetter]]:
        """The rows of the day among these events, and the events that are invalid by the version."""
        return self._by(self._version, batch_id, messages, self._limits)

    def landed(self, batch_id: str, messages: Sequence[Message]) -> tuple[pa.Table, int, list[DeadLetter]]:
        """The rows of events that landed before, and therefore must land again.

        An event that is invalid by the version is conformed by the latest other version that accepts it: a
        property that was declared since then may have had any value before.

        Returns:
            The rows, the number of those that needed another version, and events invalid by all versions.
        """
        rows, refused = self._by(self._version, batch_id, messages, UNLIMITED)
        parts, rows_of_other_versions = [rows], 0
        for version in sorted(self._as_of.keys() - {self._version}, reverse=True):
            if not refused:
                break
            pending = [letter.message for letter in refused]
            more, refused = self._by(version, batch_id, pending, UNLIMITED)
            rows_of_other_versions += more.num_rows
            parts.append(more)
        return pa.concat_tables(parts), rows_of_other_versions, refused

    def _by(
        self, version: int, batch_id: str, messages: Sequence[Message], limits: EventLimits
    ) -> tuple[pa.Table, list[DeadLetter]]:
        dataset = self._as_of[version]
        conformed = TopicConformer(Scope(self._tenant, (dataset,)), batch_id, limits).chunk(messages)
        table = conformed.tables.get(dataset.slug)
        if table is None:
            return self._schema.empty_table(), conformed.dead_letters
        table = table.drop_columns([LINE])
        if version != self._dataset.schema_version:
            table = pa.concat_tables(fitted(batch, self._schema) for batch in table.to_batches())
        of_day = pc.equal(days(table), pa.scalar(self._day))
        return table if pc.all(of_day).as_py() else table.filter(of_day), conformed.dead_letters


def as_of_version(dataset: Dataset, version: int) -> Dataset:
    """The dataset as if it followed this version of its schema; events may still name any other version."""
    if version == dataset.schema_version:
        return dataset
    uri, documents = SchemaUri.parse(dataset.schema_uri), dataset.documents
    former = replace(
        dataset,
        schema_uri=str(replace(uri, version=version)),
        document=documents[version],
        earlier=tuple((number, text) for number, text in documents.items() if number != version),
    )
    return replace(former, table_schema=table_schema(former.columns).model_dump_json())
