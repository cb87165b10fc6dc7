"""Events of the first and the last day that a table can hold: the work over their days goes on."""

from collections.abc import Iterator
from datetime import date

import pytest
from pyspark.sql.connect.session import SparkSession
from support.curated import Zone, make_zone, visit
from support.far import ANY_TIME, FIRST, LAST
from support.ingest import ingest
from support.maintenance import live_files, orders

from chaos.surroundings import with_settings
from pulse_pipelines.curated.run import curate
from pulse_pipelines.domain.requests import Task
from pulse_pipelines.maintenance.policy import Need
from pulse_pipelines.maintenance.run import run
from pulse_pipelines.monitoring.reconcile import reconcile_tenant

USUAL = date(2026, 11, 19)
MOMENTS = {
    FIRST: ("0001-01-01T00:00:00", "0001-01-01T23:59:59.999999"),
    LAST: ("9999-12-31T00:00:00", "9999-12-31T23:59:59.999999"),
    USUAL: ("2026-11-19T00:00:00", "2026-11-19T23:59:59.999999"),
}


@pytest.fixture
def any_time() -> Iterator[None]:
    """Every timestamp is accepted that a table can hold."""
    with with_settings(**ANY_TIME):
        yield


@pytest.fixture
def far(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory, any_time: None) -> Zone:
    """A tenant with two events, a file each, of the first, of the last and of a usual day."""
    zone = make_zone(spark_session, tmp_path_factory.mktemp("rollups"))
    zone.write("hours", "SELECT hour(timestamp) AS hour, count(*) AS n FROM events GROUP BY 1", grain="hour")
    for index in (0, 1):
        zone.owner.send(*[visit(moments[index], who="ann", kind="a") for moments in MOMENTS.values()])
        zone.owner.send(
            *[visit(moments[index], dataset="orders", country="DE") for moments in MOMENTS.values()]
        )
        ingest(zone.owner)
    return zone


@pytest.mark.slow  # other days are computed in tests/curated; far ones pass every door in tests/fidelity
def test_days_at_the_ends_of_the_calendar_are_computed_and_compacted(far: Zone) -> None:
    done = curate(far.session, far.due())
    assert not done.failures
    for rollup in ("daily", "behaviour", "hours"):
        assert far.served(rollup).keys() == far.table(rollup).keys() == MOMENTS.keys(), rollup
    for day, (first, last) in MOMENTS.items():
        (row,) = far.served("daily")[day]
        assert (row["events"], row["first_at"], row["last_at"]) == (2, f"{first}+00:00", f"{last}+00:00")
        assert sorted((h["hour"], h["n"]) for h in far.served("hours")[day]) == [(0, 1), (23, 1)]
    assert far.due() == []

    dataset = orders(far.owner)
    for task, days in ((Task.MERGE, (FIRST, LAST)), (Task.SORT, (LAST,))):
        tasks = [
            Need(far.owner.tenant, dataset.dataset_id, "orders", task, "for the test", 1, day) for day in days
        ]
        results = list(run(lambda: far.session, tasks, run_id="test", seconds=600))
        assert [result.outcome for result in results] == ["done"] * len(days), results
        assert all(result.after["files"] == 1 for result in results), results
    assert len(live_files(far.owner)) == 1 + 1 + 2
    assert len(far.owner.rows()) == 2 * len(MOMENTS)
    assert reconcile_tenant(far.owner.tenant).balanced
