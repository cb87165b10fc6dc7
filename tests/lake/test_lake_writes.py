"""Engines with nothing but a tenant's key write tables of its own, and read each other's."""

import pytest
from support.catalog import Guest
from support.engine_rows import ROWS, WRITERS, read
from support.http import Api


@pytest.mark.parametrize("engine", WRITERS)
def test_all_engines_read_a_table_written_by_one_engine(catalog: Api, writer: Guest, engine: str) -> None:
    name = f"by_{engine}"
    WRITERS[engine](catalog, writer, name)
    for reader, rows in read(catalog, writer, name).items():
        assert rows == ROWS.to_pylist(), reader
