"""Places in a tenant's month: none is lost, none is taken twice, each counts in the month it was made in."""

import asyncio
from datetime import date
from typing import Any

import pytest
from support.ingest import Owner

from pulse_api.http.collect.publisher import Outgoing
from pulse_api.http.collect.reservations import Reservations
from pulse_pipelines.registry import intake, quotas
from pulse_pipelines.registry.intake import Reserved
from pulse_resources import postgres

EARLIER = "UPDATE intake SET month = (month - interval '1 month')::date RETURNING month"
LANDED = f"""
INSERT INTO usage (tenant_id, month, records, bytes, early) VALUES (%s, {intake.THIS_MONTH}, %s, 1, %s)
"""


def reserve(owner: Owner, events: str, maximum: int = 10) -> list[Reserved] | None:
    """Places for events that have one letter as identity, each."""
    (reserved,) = intake.reserve(owner.tenant, [[letter.encode() for letter in events]], maximum)
    return reserved


def execute(owner: Owner, role: str, statement: str, values: Any = None) -> None:
    with postgres.tenant_transaction(role, owner.tenant.tenant_id) as connection:
        connection.execute(statement, values)


def accepted(owner: Owner) -> list[int | None]:
    """By month, the latest first."""
    return [month.accepted for month in quotas.find_usage(owner.tenant).months]


def test_possibly_written_places_stay_reserved_and_others_are_released(owner: Owner) -> None:
    reserved = reserve(owner, "abcd")
    intake.release(owner.tenant, reserved, sent=2)
    assert accepted(owner) == [2]
    again = reserve(owner, "abaz", maximum=4)
    assert again is not None, "a and b have their places, a second a and z need new ones"
    assert [place.doubted for place in again] == [True, True, False, False]
    assert reserve(owner, "a", maximum=4) is None, "its place went with the request that is under way"
    intake.release(owner.tenant, again, sent=0)
    assert accepted(owner) == [2], "what was in doubt before still is"
    assert reserve(owner, "ab", maximum=2) is not None


def test_a_place_is_given_back_to_the_month_that_it_was_made_in(owner: Owner) -> None:
    """A request that was under way at midnight on the 1st."""
    before = reserve(owner, "abcde")
    with postgres.tenant_transaction("pulse_api", owner.tenant.tenant_id) as connection:
        ((month,),) = connection.execute(EARLIER).fetchall()
    reserve(owner, "xyz")
    intake.release(owner.tenant, [place._replace(month=month) for place in before], sent=2)
    assert accepted(owner) == [3, 2]
    assert [place.month for place in reserve(owner, "a")] == [month], "where it has its place"
    assert accepted(owner) == [3, 2]


@pytest.mark.parametrize("early", [10, 4, 0])
def test_events_landing_after_midnight_count_in_the_earlier_month(owner: Owner, early: int) -> None:
    reserve(owner, "a")
    execute(owner, "pulse_api", EARLIER)
    execute(owner, "pulse_pipeline", LANDED, [owner.tenant.tenant_id, 10, early])
    assert quotas.find_usage(owner.tenant).accepted_this_month == 10 - early
    assert accepted(owner) == [None, max(1, early)]
    assert (reserve(owner, "b") is not None) == (early > 0)


def test_a_quota_counts_events_that_landed_while_it_was_lifted(owner: Owner) -> None:
    quotas.set_limits(owner.tenant, max_records_per_month=10)
    reserve(owner, "a")
    quotas.set_limits(owner.tenant, max_records_per_month=-1)
    execute(owner, "pulse_pipeline", LANDED, [owner.tenant.tenant_id, 10, 0])
    quotas.set_limits(owner.tenant, max_records_per_month=10)
    assert reserve(owner, "b") is None


def test_a_queued_reservation_is_checked_against_the_latest_quota(owner: Owner) -> None:
    async def reserve_two() -> list[bool]:
        line = Reservations()
        events = [Outgoing("orders", str(n), b"{}") for n in range(5)]
        first = asyncio.create_task(line.reserve(owner.tenant, events, 100))
        await asyncio.sleep(0)  # it is under way
        second = asyncio.create_task(line.reserve(owner.tenant, events, 5))
        return [reserved is not None for reserved in await asyncio.gather(first, second)]

    assert asyncio.run(reserve_two()) == [True, False]


def test_a_reservation_is_on_disk_before_anything_is_published(owner: Owner) -> None:
    """Else a crash of Postgres would forget it, and its events would land all the same."""
    reserve(owner, "a")
    with postgres.transaction("pulse_api") as connection:
        ((before,),) = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    reserve(owner, "b")
    with postgres.transaction("pulse_api") as connection:
        flushed = connection.execute("SELECT pg_current_wal_flush_lsn() > %s::pg_lsn", [before]).fetchone()
    assert flushed == (True,)


def test_doubts_are_forgotten_with_their_month(owner: Owner) -> None:
    intake.release(owner.tenant, reserve(owner, "a"), sent=1)
    execute(owner, "pulse_api", "UPDATE intake_doubts SET month = %s", [date(2020, 1, 1)])
    execute(owner, "pulse_api", EARLIER)
    assert [place.doubted for place in reserve(owner, "a")] == [False]
