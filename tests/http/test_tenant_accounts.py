"""The HTTP API makes the vending accounts of tenants that have none."""

import uuid

import pytest
from support.http import served
from support.ingest import make_owner

from chaos.surroundings import with_settings
from chaos.waiting import wait
from pulse_pipelines import registry
from pulse_pipelines.lake import metadata
from pulse_resources import object_store
from pulse_resources.errors import Terminal
from pulse_resources.settings import Settings
from pulse_resources.store_keys import vended
from pulse_resources.store_keys.vended import Mode


def test_a_tenant_without_an_account_has_one_after_the_start(stack: Settings) -> None:
    """It was registered by an earlier version."""
    with with_settings(OBJECT_STORE__VENDING_BY_TENANT="false"):
        folder = metadata.folder(registry.create_tenant(f"t{uuid.uuid4().hex[:10]}"))
    with pytest.raises(Terminal, match="to this tenant"):
        vended.credentials([folder], Mode.READ, to_tenant=True)

    def has_one() -> bool:
        try:
            key = vended.credentials([folder], Mode.READ, to_tenant=True)
        except Terminal:
            return False
        return list(object_store.listed(folder, metadata.client(key))) == []

    with served():
        wait(has_one, "the tenant got no account")


def test_the_api_starts_without_the_object_store(stack: Settings) -> None:
    make_owner()
    with (
        with_settings(OBJECT_STORE__ENDPOINT="http://127.0.0.1:1"),
        served() as api,
        api.client() as client,
    ):
        assert client.get("/healthz").status_code == 200
