"""The doors in that take a request for each value, replays of dead letters, and days that are rebuilt."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest
from support.http import Api
from support.lake import DAY, spark
from support.pipes import settle

from chaos.sources import SOURCE, stored_source
from fidelity import doors_out, lake_of_values as values, record
from pulse_pipelines import pipes, registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.pipes.sinks.run import deliver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lake(api: Api) -> Iterator[values.Lake]:
    lake = values.make_tenant(api)
    with lake.http:
        for send in values.SLOW_DOORS.values():
            send(lake)
        values.land(lake)
        yield lake


def tables(lake: values.Lake, catalog: Api, slugs: Iterable[str]) -> dict[str, Any]:
    """The data of the rows of datasets, by event id."""
    received: dict[str, Any] = {}
    for slug in slugs:
        dataset = registry.find_dataset(lake.owner.tenant, slug)
        received |= doors_out.by_duckdb(doors_out.Out(lake, catalog), dataset)
    return received


def changed(lake: values.Lake, catalog: Api) -> Mapping[str, record.Changes]:
    """What the tables have otherwise than it was sent."""
    received = tables(lake, catalog, (*doors_out.EVENTS, *doors_out.ENTITIES))
    return record.changes(lake.sent.values(), lake, received, "duckdb")


def test_each_value_is_as_documented_and_unchanged_in_a_rebuilt_day(lake: values.Lake, catalog: Api) -> None:
    before = changed(lake, catalog)
    for door in values.SLOW_DOORS:
        some = [one for one in lake.sent.values() if one.door == door]
        record.hold("in", door, record.of_door_in(some, lake, before))
    for slug in doors_out.EVENTS:
        backfill(spark(), lake.owner.tenant, slug, DAY, parallelism=2)
    assert changed(lake, catalog) == before
    landed = [one for one in lake.sent.values() if one.event_id not in lake.refused and one.door != "sync"]
    record.hold("out", "backfill", {"values": len(landed), "differs": {}})


def test_a_service_gets_each_entity_as_it_is(lake: values.Lake, catalog: Api, api: Api) -> None:
    other = values.make_tenant(api)
    values.make_datasets(other.owner)
    place, key = api.url.removeprefix("http://"), quote(other.guest.key.text, "")
    with other.http:
        for slug in doors_out.ENTITIES:
            pipe = definition({"pipe": slug, "from": slug, "to": SOURCE})
            with stored_source(lake.owner.tenant, f"http://:{key}@{place}/v1/datasets/{slug}/entities"):
                pipes.create(lake.owner.tenant, pipe)
                deliver(lake.owner.tenant, slug)
        settle(other.owner)
        received = tables(other, catalog, doors_out.ENTITIES)
    assert received == tables(lake, catalog, doors_out.ENTITIES)
    record.hold("out", "sink_http", {"values": len(received), "differs": {}})
