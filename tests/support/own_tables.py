"""Tables of a tenant's own, made through the REST catalog in the namespace `own`."""

from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog

from support.catalog import Guest
from support.engines import rest
from support.http import Api
from support.rest_catalog import Lake


@pytest.fixture
def own_lake(catalog: Api, writer: Guest) -> Iterator[Lake]:
    """Requests by the writer's key."""
    with catalog.client(writer.key.text) as client:
        client.post("/v1/namespaces", json={"namespace": ["own"]})
        yield Lake(client)


@pytest.fixture
def own_engine(catalog: Api, writer: Guest, own_lake: Lake) -> Iterator[RestCatalog]:
    """PyIceberg by that key; the tables that a test made are gone after it."""
    catalog_client = rest(catalog, writer)
    yield catalog_client
    for name in catalog_client.list_tables("own"):
        catalog_client.drop_table(name)
