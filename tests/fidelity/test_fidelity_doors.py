"""The doors in that take a request for each value, replays of dead letters, and days that are rebuilt."""

from collections.abc import Iterator, Mapping

import pytest
from support.http import Api
from support.lake import DAY, spark

from fidelity import doors_out, lake_of_values as values, record
from pulse_pipelines import registry
from pulse_pipelines.backfill import backfill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lake(api: Api) -> Iterator[values.Lake]:
    lake = values.make_tenant(api)
    with lake.http:
        for send in values.SLOW_DOORS.values():
            send(lake)
        values.land(lake)
        yield lake


def changed(lake: values.Lake, catalog: Api) -> Mapping[str, record.Changes]:
    """What the tables have otherwise than it was sent."""
    came = {}
    for slug in (*doors_out.EVENTS, *doors_out.ENTITIES):
        dataset = registry.find_dataset(lake.owner.tenant, slug)
        came |= doors_out.by_duckdb(doors_out.Out(lake, catalog), dataset)
    return record.changes(lake.sent.values(), lake, came, "duckdb")


def test_each_value_is_as_documented_and_a_rebuilt_day_has_it_as_it_was(
    lake: values.Lake, catalog: Api
) -> None:
    before = changed(lake, catalog)
    for door in values.SLOW_DOORS:
        some = [one for one in lake.sent.values() if one.door == door]
        record.hold("in", door, record.of_door_in(some, lake, before))
    for slug in doors_out.EVENTS:
        backfill(spark(), lake.owner.tenant, slug, DAY, parallelism=2)
    assert changed(lake, catalog) == before
    landed = [one for one in lake.sent.values() if one.event_id not in lake.refused and one.door != "sync"]
    record.hold("out", "backfill", {"values": len(landed), "differs": {}})
