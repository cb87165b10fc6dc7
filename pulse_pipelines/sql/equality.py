"""Deletes by equality that DuckDB would apply to other rows than Iceberg does: such a table is refused.

DuckDB 1.5 also leaves out rows that are null in a column of the deletes, and equal rows of partitions other
than that of the deletes; the two zeros are equal for it. It is exact if the columns are required, have no
floating-point numbers, and contain those that the partitions are made of.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType

from pulse_pipelines.sql import manifests
from pulse_resources.errors import UserError

_DELETES = 1
"""Content of a manifest that names files of deletes."""
_FIX = (
    "Have your engine rewrite the table's data files, so that no deletes by equality remain; an engine that"
    " applies them, such as Spark or Trino, reads the table as it is"
)


def exact_columns(metadata: TableMetadata) -> list[int]:
    """Ids of the columns by which DuckDB deletes exactly the equal rows, in whatever schema they are."""
    exact: dict[int, bool] = {}
    for schema in metadata.schemas:
        for column in schema.fields:
            fits = column.required and not isinstance(column.field_type, FloatType | DoubleType)
            exact[column.field_id] = exact.get(column.field_id, True) and fits
    return [number for number, fits in exact.items() if fits]


def scopes(metadata: TableMetadata) -> list[list[int]]:
    """Ids of the partition specs, each before the ids of the columns that its partitions are made of.

    A spec whose fields are all void is left out: Iceberg takes its deletes for those of all partitions.
    """
    return [
        [spec.spec_id, *(field.source_id for field in spec.fields)]
        for spec in metadata.partition_specs
        if not spec.fields or not all(isinstance(field.transform, VoidTransform) for field in spec.fields)
    ]


def check(
    database: duckdb.DuckDBPyConnection,
    name: str,
    manifest_list: str,
    *,
    exact: Collection[int],
    scopes: Sequence[Sequence[int]],
) -> None:
    """Check that a snapshot has no deletes by equality that DuckDB would apply wrongly.

    Args:
        name: the table's, for errors.
        manifest_list: location of the snapshot's list of manifests.
        exact: as of `exact_columns`.
        scopes: as of `scopes`.

    Raises:
        UserError: it has.
        duckdb.Error: a manifest of deletes cannot be read.
    """
    sources = {spec_id: columns for spec_id, *columns in scopes}
    _, rows = manifests.read_list(database, manifest_list)
    for manifest in rows:
        if manifest.get("content") != _DELETES:
            continue
        scope = sources.get(manifest.get("partition_spec_id", -1))
        for columns in _column_sets(database, manifest):
            if not set(columns) <= set(exact):
                why = "their columns allow nulls, or are floating-point numbers or nested"
            elif not columns or scope is None or not set(scope) <= set(columns):
                why = "their columns do not contain those of the table's partitions"
            else:
                continue
            raise UserError(
                f"the table {name!r} has deletes by equality that DuckDB would apply to more rows: {why}",
                fix=_FIX,
            )


def _column_sets(database: duckdb.DuckDBPyConnection, manifest: Mapping[str, Any]) -> list[Sequence[int]]:
    """The different sets of columns by which a manifest's files delete; removed files do not count."""
    live = "FROM read_avro(?) WHERE status <> 2 AND data_file.content = 2"
    path = [str(manifest["manifest_path"])]
    answer = database.execute(f"SELECT count(*) {live}", path).fetchone()
    if answer is None or not answer[0]:
        return []
    read = database.execute(f"SELECT DISTINCT data_file.equality_ids {live}", path)
    return [columns or () for (columns,) in read.fetchall()]
