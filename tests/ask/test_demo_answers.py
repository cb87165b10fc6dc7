"""The demo's last words: three questions answered from the lake, over its own schemas."""

import uuid
from datetime import UTC, datetime

from support.here import ingest_here as ingest
from support.ingest import Owner

from pulse_api.demo import report, run
from pulse_api.demo.source import OPERATOR, Event
from pulse_resources.settings import Settings

AT = datetime(2026, 11, 19, 10, tzinfo=UTC)


def flight(tenant: str, number: int, origin: str, dest: str, delay: float) -> Event:
    scheduled = AT.isoformat()
    data = {"flight": number, "origin": origin, "dest": dest, "scheduled_at": scheduled, "dep_time": 600}
    return Event(tenant, "departures", f"f-{number}", AT, True, data | {"dep_delay": delay})


def test_three_questions_are_answered(stack: Settings) -> None:
    airline = f"airline_{uuid.uuid4().hex[:8]}"
    operator = f"operator_{uuid.uuid4().hex[:8]}"
    datasets = {airline: "departures", operator: "weather"}
    tenants = run.register({airline: "An airline", operator: "Airports"}, datasets)
    flights = [flight(airline, 1, "JFK", "LAX", 10), flight(airline, 2, "JFK", "BOS", 30)]
    weather = Event(operator, "weather", "w-1", AT, True, {"origin": "JFK", "temp": 50.0})
    owners = [Owner(tenants[airline]), Owner(tenants[operator])]
    owners[0].send(*(departure.payload() for departure in flights))
    owners[1].send(weather.payload())
    ingest(*owners)
    answers = report.answers({airline: tenants[airline], OPERATOR: tenants[operator]}, airline)
    assert [list(answer.rows) for answer in answers] == [
        [{"origin": "JFK", "number": 2}],
        [{"dest": "BOS", "avg_dep_delay": 30.0}],
        [{"origin": "JFK", "avg_temp": 50.0}],
    ]
