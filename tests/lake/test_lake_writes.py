"""Engines with nothing but a tenant's key write tables of its own, and read each other's."""

import pytest
from support.catalog import Guest
from support.engine_rows import ROWS, WRITERS, read
from support.http import Api


@pytest.mark.parametrize("engine", WRITERS)
def test_what_an_engine_writes_all_of_them_read(catalog: Api, writer: Guest, engine: str) -> None:
    name = f"by_{engine}"
    WRITERS[engine](catalog, writer, name)
    for reader, rows in read(catalog, writer, name).items():
        assert rows == ROWS.to_pylist(), reader
