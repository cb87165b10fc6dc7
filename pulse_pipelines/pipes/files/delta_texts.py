"""Delta encodings: texts that Parquet stores as differences or by their lengths, as its second version does.

Arrow makes no dictionaries of them: each row has its text in memory.
"""

from collections.abc import Set

import pyarrow.parquet as pq

ROWS = 50
"""Rows of a file with such texts that are in memory at a time."""
_ENCODINGS = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})


def columns(metadata: pq.FileMetaData, names: Set[str]) -> set[str]:
    """Those of some columns that are encoded so in any group of rows."""
    leaves = [place for place in range(metadata.num_columns) if metadata.schema.column(place).path in names]
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return {
        metadata.schema.column(place).path
        for place in leaves
        if any(not _ENCODINGS.isdisjoint(group.column(place).encodings) for group in groups)
    }
