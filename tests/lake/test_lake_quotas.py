"""Quotas of own tables: a key of the object store writes as many files as its holder likes."""

import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from support.catalog import LAKE
from support.http import Api
from support.ingest import make_owner
from support.rest_catalog import Lake

from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import metadata, paths, table_quotas
from pulse_pipelines.registry import keys, quotas
from pulse_resources import object_store
from pulse_resources.errors import QuotaExceeded
from pulse_resources.object_store import page_sizes
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Mode

FILES = 5


@pytest.fixture
def tenant(stack: Any) -> Tenant:
    return make_owner().tenant


@pytest.fixture
def lake(catalog: Api, tenant: Tenant) -> Iterator[Lake]:
    with catalog.client(keys.issue_key(tenant, "engine", LAKE).text) as client:
        assert client.post("/v1/namespaces", json={"namespace": ["own"]}).status_code == 200
        yield Lake(client)


@pytest.fixture
def folder(lake: Lake, tenant: Tenant) -> Iterator[str]:
    """The folder of a table with more files than metadata."""
    location: str = lake.make().location
    for number in range(FILES):
        object_store.put(f"{location}/data/<Size>9<Size>&{number}", b"x" * number)
    table_quotas.forget()
    yield location
    quotas.set_limits(tenant, max_lake_bytes=-1)
    table_quotas.forget()


def test_sizes_are_read_page_by_page(folder: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_sizes, "PAGE", 2)
    key = vended.credentials([metadata.folder(tenant)], Mode.READ)
    pages = list(page_sizes.sizes(f"{folder}/data", key))
    assert list(map(len, pages)) == [2, 2, 1]
    assert sorted(chain(*pages)) == list(range(FILES))
    assert sum(map(len, object_store.pages(f"{folder}/data", key))) == FILES, "other listings are whole"


def test_empty_files_use_up_the_quota(folder: str, tenant: Tenant) -> None:
    objects = list(object_store.listed(paths.tenant_folder(tenant)))
    real = sum(item.bytes for item in objects)
    counted = sum(max(table_quotas.LEAST_BYTES, item.bytes) for item in objects)
    assert counted > real + FILES
    quotas.set_limits(tenant, max_lake_bytes=counted + 1)
    table_quotas.admit_bytes(tenant)
    table_quotas.forget()
    quotas.set_limits(tenant, max_lake_bytes=counted)
    with pytest.raises(QuotaExceeded):
        table_quotas.admit_bytes(tenant)


def test_one_request_lists_the_files_of_a_tenant_at_a_time(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks meanwhile gets the earlier result."""
    monkeypatch.setattr(table_quotas, "FRESH_S", 0.0)
    monkeypatch.setattr(table_quotas, "FRESH_SHARE", 0.0)
    monkeypatch.setattr(table_quotas, "limited", lambda limit: True)
    listing_begins, may_end, listings = threading.Event(), threading.Event(), list[int]()

    def over(tenant: Tenant, limit: int) -> str | None:
        listings.append(len(listings))
        if len(listings) > 1:
            listing_begins.set()
            assert may_end.wait(PATIENCE_S)
            return "over"
        return None

    monkeypatch.setattr(table_quotas, "_over", over)
    table_quotas.forget()
    assert table_quotas.has_bytes(tenant)
    thread = threading.Thread(target=table_quotas.has_bytes, args=[tenant])
    thread.start()
    try:
        assert listing_begins.wait(PATIENCE_S)
        assert table_quotas.has_bytes(tenant), "it waits for the other listing"
        assert len(listings) == 2
    finally:
        may_end.set()
        thread.join()
    wait(lambda: not table_quotas.has_bytes(tenant), "the later result is not used")
    table_quotas.forget()
