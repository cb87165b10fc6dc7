"""The REST catalog on a port of its own, in this process, and tenants whose tables have rows."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest

from chaos.surroundings import with_settings
from pulse_api.lake.app import create_app
from pulse_pipelines import registry
from pulse_pipelines.domain.key import IssuedKey, KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys
from pulse_resources.settings import Settings
from support.here import ingest_here as ingest
from support.http import Api, served
from support.ingest import Owner, event, make_owner

READ = (KeyScope.LAKE_READ,)
LAKE = (KeyScope.LAKE_READ, KeyScope.LAKE_WRITE)
ROWS = [f"{{}}-{turn}-{number}" for turn in (1, 2) for number in range(3)]
"""Ids of the rows of `orders`, of its two snapshots; the guest's name is left open."""


@dataclass(frozen=True)
class Guest:
    """A tenant with rows in `orders`, and a key that may read them with an engine."""

    owner: Owner
    key: IssuedKey

    @property
    def tenant(self) -> Tenant:
        return self.owner.tenant


@pytest.fixture(scope="session")
def catalog(stack: Settings) -> Iterator[Api]:
    """One server for all tests, without a rate of invalid requests or limits of an address."""
    with ExitStack() as until_the_end:
        with with_settings(LAKE__INVALID_PER_SECOND=-1):
            running = until_the_end.enter_context(served(create_app(), max_connections_per_address=0))
        yield running


@pytest.fixture(scope="session")
def guests(stack: Settings) -> tuple[Guest, Guest]:
    """Two tenants for tests that make nothing: others look at all that there is."""
    return make_guests()


def make_guests() -> tuple[Guest, Guest]:
    """Two tenants, who both have `orders` with two snapshots; the other one has `secrets`, too."""
    mine, theirs = make_owner(), make_owner()
    uri = registry.publish_schema(theirs.tenant, "secrets", json.dumps({"type": "object"})).schema_uri
    registry.create_dataset(theirs.tenant, "secrets", uri)
    for turn in (1, 2):
        mine.send(*(event(f"mine-{turn}-{number}") for number in range(3)))
        theirs.send(*(event(f"theirs-{turn}-{number}") for number in range(3)))
        ingest(mine, theirs)
    guests = [Guest(owner, keys.issue_key(owner.tenant, "engine", LAKE)) for owner in (mine, theirs)]
    return guests[0], guests[1]


@pytest.fixture(scope="module")
def writers(stack: Settings) -> tuple[Guest, Guest]:
    """Two tenants whose dataset has no rows yet, for tests that make tables of their own."""
    guests = [
        Guest(owner, keys.issue_key(owner.tenant, "engine", LAKE)) for owner in (make_owner(), make_owner())
    ]
    return guests[0], guests[1]


@pytest.fixture
def writer(writers: tuple[Guest, Guest]) -> Guest:
    return writers[0]


@pytest.fixture
def guest(guests: tuple[Guest, Guest]) -> Guest:
    return guests[0]


@pytest.fixture
def engine(catalog: Api, guest: Guest) -> Iterator[httpx.Client]:
    """A client that presents the guest's key."""
    with catalog.client(guest.key.text) as client:
        yield client
