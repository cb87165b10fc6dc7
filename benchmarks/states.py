"""States of datasets of events: what a batch costs more with one, and how long a key takes to be read."""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median

import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console

from benchmarks import load, preview as previews
from benchmarks.steps import run_batch
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.domain.windows import Windows
from pulse_pipelines.states import declared_states, state_build, window_buckets
from pulse_pipelines.states.state_keys import frame, with_keys

FEW = 100
"""Keys of the dataset that has few."""
TIMES = 3
"""Batches of each kind, in turns, after one of `WARM_EVENTS`."""
WARM_EVENTS = 1_000
PAGE = 100
WINDOWS = Windows(("n",), 1_800)
MINUTES = 1_440
"""Minutes in which a key has an event, of the one whose windows are read."""
_SCHEMA = orjson.dumps(
    {"type": "object", "properties": {"thing": {"type": "string"}, "n": {"type": "integer"}}}
)


def measure(console: Console, events: int) -> tuple[Iterator[tuple[str, float, float]], Tenant]:
    """Kind of dataset, median seconds of all steps of its batches and of settle; a tenant with a state."""
    kinds: dict[str, tuple[Tenant, int | None]] = {
        "without a state": (_tenant(state=False), None),
        f"{FEW} keys": (_tenant(state=True), FEW),
        f"{FEW} keys, with windows": (_tenant(state=True, windows=WINDOWS), FEW),
        "each event has its own key": (tenant := _tenant(state=True), None),
        "the same with windows": (_tenant(state=True, windows=WINDOWS), None),
    }
    spent: dict[str, list[dict[str, float]]] = {label: [] for label in kinds}
    for time_ in range(TIMES + 1):
        for label, (owner, keys) in kinds.items():
            count = events if time_ else WARM_EVENTS
            load.send(console, [owner], count, make=partial(_event, keys, time_))
            done = run_batch([owner])
            if time_:
                spent[label].append(done)
    medians = (
        (label, median(sum(run.values()) for run in runs), median(run["settle"] for run in runs))
        for label, runs in spent.items()
    )
    return medians, tenant


def reduced(events: int) -> Iterator[tuple[str, float]]:
    """What a task does for a state with a file of events; processor seconds, whatever else runs."""
    (tenant,) = load.make_tenants(1)
    declared_states.declare(tenant, load.DATASET, "country", windows=Windows(("amount", "seats")))
    dataset = registry.current_table(tenant, load.DATASET).dataset
    rows = previews.typed_rows(dataset, np.arange(events), np.arange(events))
    place = rows.schema.get_field_index("country")
    for label, keys in ((f"{FEW} keys", FEW), ("each event has its own key", events)):
        column = pa.array([str(number % keys) for number in range(events)])
        changed = rows.set_column(place, rows.schema.field(place), column)
        began = time.process_time()
        assert frame(dataset, changed) is not None
        yield label, time.process_time() - began
        fitting, texts = with_keys("country", changed)
        began = time.process_time()
        assert window_buckets.frame(dataset, texts, fitting)
        yield f"{label}: its windows", time.process_time() - began


def reads(tenant: Tenant, events: int, times: int) -> Iterator[tuple[str, float, float]]:
    """What is read of the state in which each event has its own key; p50 and p95 in milliseconds."""
    assert declared_states.find(tenant, load.DATASET).keys == TIMES * events + WARM_EVENTS
    some = np.random.default_rng(1).integers(0, events, times).tolist()
    reads_by_label: dict[str, Callable[[str], object]] = {
        "a key": partial(declared_states.newest, tenant, load.DATASET),
        f"a page of {PAGE} keys": lambda key: declared_states.page(tenant, load.DATASET, key, PAGE),
    }
    for label, read in reads_by_label.items():
        spent = []
        for number in some:
            began = time.perf_counter()
            read(f"1-{number}")
            spent.append((time.perf_counter() - began) * 1_000)
        p50, p95 = np.percentile(spent[5:], [50, 95])
        yield label, float(p50), float(p95)


def window_reads(console: Console, times: int) -> tuple[float, float]:
    """A key with an event in each minute of a day, and its windows; p50 and p95 in milliseconds."""
    tenant = _tenant(state=True, windows=WINDOWS)
    load.send(console, [tenant], MINUTES, make=_event_a_minute)
    run_batch([tenant])
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        windows = declared_states.newest(tenant, load.DATASET, "busy").windows
        spent.append((time.perf_counter() - began) * 1_000)
        assert windows is not None
        assert windows.complete
    p50, p95 = np.percentile(spent[5:], [50, 95])
    return float(p50), float(p95)


def _event_a_minute(number: int, day: datetime, dataset: str) -> bytes:
    at = datetime.now(UTC) - timedelta(minutes=number)
    fields = {"event_id": uuid.uuid4().hex, "dataset": dataset, "timestamp": at.isoformat()}
    return orjson.dumps(fields | {"data": {"thing": "busy", "n": number}})


def _tenant(*, state: bool, windows: Windows | None = None) -> Tenant:
    tenant = registry.create_tenant(f"b{uuid.uuid4().hex[:12]}")
    schema = registry.publish_schema(tenant, load.DATASET, _SCHEMA.decode())
    registry.create_dataset(tenant, load.DATASET, schema.schema_uri)
    if state:
        declared_states.declare(tenant, load.DATASET, "thing", windows=windows)
        state_build.build(tenant, load.DATASET)
    return tenant


def _event(keys: int | None, batch: int, number: int, day: datetime, dataset: str) -> bytes:
    thing = f"{batch}-{number}" if keys is None else f"{number % keys}"
    data = {"thing": thing, "n": number, "country": "DE", "at": "2026-11-01T08:30:00Z", "plan": "team"}
    fields = {"event_id": uuid.uuid4().hex, "dataset": dataset, "timestamp": day.isoformat(), "data": data}
    return orjson.dumps(fields)
