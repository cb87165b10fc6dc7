"""Rows of a dataset's table at one moment, from which a state and its windows are built."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import FileScanTask

from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.tables import rewrite_file
from pulse_resources import iceberg, object_store
from pulse_resources.errors import Terminal
from pulse_resources.iceberg import readable

PIECE = 20_000
"""Rows of one transaction."""


def files(tenant: Tenant, dataset: Dataset, location: str) -> list[FileScanTask]:
    """The data files of a table.

    Args:
        location: of the table's metadata.

    Raises:
        Terminal: a file of the table is gone or damaged, or another engine wrote delete files.
    """
    with readable.damage_explained(location):
        table = iceberg.load_table((tenant.namespace, dataset.slug), location)
        tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise Terminal(
            "another engine wrote delete files into the table",
            fix="Compact it (pulse upkeep), then declare the state again",
            tenant=tenant.slug,
            dataset=dataset.slug,
        )
    return tasks


def pieces(file: FileScanTask, schema: pa.Schema) -> Iterator[pa.Table]:
    """Columns of a file's rows, `PIECE` rows at a time; columns that the file lacks are null.

    Raises:
        FileNotFoundError: an erasure removed the file.
        OSError: the object store failed.
    """
    with object_store.file_system().open_input_file(object_store.key(file.file.file_path)) as content:
        parquet = pq.ParquetFile(content)
        present = [name for name in schema.names if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(PIECE, columns=present):
            yield rewrite_file.fitted(batch, schema)
