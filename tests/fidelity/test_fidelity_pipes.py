"""Whatever a pipe brings from files and feeds is exact, refused, or changed as documented."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.http import Api
from support.pipes import settle

from fidelity import doors_of_pipes as doors, lake_of_values as values, readings, record
from pulse_pipelines import registry


@pytest.fixture(scope="module")
def lake(api: Api) -> Iterator[values.Lake]:
    lake = values.make_tenant(api)
    with lake.http:
        for door, bring in doors.DOORS.items():
            doors.make_datasets(lake, door)
            bring(lake, door)
        settle(lake.owner)
        for door, bring in doors.FOLLOWING.items():
            doors.make_datasets(lake, door)
            bring(lake, door)
        settle(lake.owner)
        lake.refused |= doors.refusals(lake)
        yield lake


@pytest.mark.parametrize("door", [*doors.DOORS, *doors.FOLLOWING])
def test_each_value_that_a_pipe_brings_is_exact_or_refused_or_changed_as_documented(
    lake: values.Lake, door: str
) -> None:
    received: dict[str, Any] = {}
    for place in values.PLACES:
        dataset = registry.find_dataset(lake.owner.tenant, doors.dataset(door, place))
        received |= {row["id"]: readings.data(row, dataset.columns) for row in lake.owner.rows(dataset.slug)}
    for data in received.values():
        data.pop(doors.KEY, None)
    some = [one for one in lake.sent.values() if one.door == door]
    changed = record.changes(some, lake, received, "duckdb")
    record.hold("in", door, record.of_door_in(some, lake, changed))
