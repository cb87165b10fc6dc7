"""Whatever goes in through a door comes out of each as it was, is refused, or is changed as documented."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.http import Api

from fidelity import doors_out, lake_of_values as values, record
from pulse_pipelines import registry

SLOW = ("spark", "terminal")
REFERENCE = "duckdb"
"""The door out by which a door in is measured."""


@pytest.fixture(scope="module")
def lake(api: Api) -> Iterator[values.Lake]:
    lake = values.make_lake(api)
    with lake.http:
        for send in values.DOORS.values():
            send(lake)
        values.land(lake)
        yield lake


def read(lake: values.Lake, catalog: Api, door: str) -> dict[str, Any]:
    """The data of all rows that a door out has, by event id."""
    reads, slugs = doors_out.DOORS[door]
    received: dict[str, Any] = {}
    for slug in slugs:
        dataset = registry.find_dataset(lake.owner.tenant, slug)
        received |= reads(doors_out.Out(lake, catalog), dataset)
    return received


@pytest.fixture(scope="module")
def changed(lake: values.Lake, catalog: Api) -> Mapping[str, record.Changes]:
    """What the table has otherwise than it was sent."""
    return record.changes(lake.sent.values(), lake, read(lake, catalog, REFERENCE), REFERENCE)


@pytest.mark.parametrize("door", values.DOORS)
def test_each_value_that_goes_in_is_exact_or_refused_or_changed_as_documented(
    lake: values.Lake, changed: Mapping[str, record.Changes], door: str
) -> None:
    some = [one for one in lake.sent.values() if one.door == door]
    record.hold("in", door, record.of_door_in(some, lake, changed))


@pytest.mark.parametrize(
    "door", [pytest.param(door, marks=[pytest.mark.slow] * (door in SLOW)) for door in doors_out.DOORS]
)
def test_each_reader_returns_the_values_of_the_table(
    lake: values.Lake, changed: Mapping[str, record.Changes], catalog: Api, door: str
) -> None:
    received = read(lake, catalog, door)
    doors = doors_out.ONLY.get(door, tuple(values.DOORS))
    slugs = doors_out.DOORS[door][1]
    some = [one for one in lake.sent.values() if one.door in doors and one.table in slugs]
    changes = record.changes(some, lake, received, door)
    differs = {
        one.value.key: "+".join(sorted(keys))
        for one in some
        if (keys := _keys(changes.get(one.event_id)) ^ _keys(changed.get(one.event_id)))
    }
    record.hold("out", door, {"values": len(received), "differs": differs})


def _keys(changes: record.Changes | None) -> set[str]:
    return set(next(iter(changes.values()))[0].split("+")) if changes else set()
