"""What may take long is judged aside: it is ended in time, and everything else goes on. No services."""

import asyncio
import gzip
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.conform import SCHEMA, TENANT, dataset, messages
from support.pauses import stop

from chaos.waiting import PATIENCE_S
from pulse_api.http.collect import large
from pulse_api.http.collect.split import Item, describing
from pulse_api.http.collect.verdicts import Validation, Verdicts
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.dataset import Dataset, OnInvalid
from pulse_pipelines.domain.event_limits import UNLIMITED
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.schemas.cost import Bound
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.ingest.conform import TopicConformer
from pulse_pipelines.validation import worker_pool
from pulse_pipelines.validation.validator import Refusal, Validator
from pulse_pipelines.validation.worker_pool import ValidatorPool

pytestmark = pytest.mark.long

SECONDS = 0.3
MB = 1024 * 1024
MEMORY = 256 * MB
LIMITS = replace(UNLIMITED, validation_seconds=SECONDS)
DEAR = {
    "type": "object",
    "properties": {"a": {"items": {"not": {"enum": [n + 0.5 for n in range(11)]}}}},
}
TINY = [1e-300] * 20_000
"""Compared with each of the enum: seconds."""


def dear(on_invalid: str = "refuse") -> Dataset:
    return replace(dataset(DEAR, "dear"), on_invalid=OnInvalid(on_invalid))


def judge(limits: Any = LIMITS, on_invalid: str = "refuse") -> Validator:
    return Validator(Scope(TENANT, (dataset(SCHEMA), dear(on_invalid))), limits)


def event(event_id: str, slug: str, **data: Any) -> bytes:
    document = {"event_id": event_id, "dataset": slug, "timestamp": "2026-11-19T10:00:00Z", "data": data}
    return json.dumps(document).encode()


def cheap(event_id: str) -> bytes:
    return event(event_id, "orders", country="DE", count=3)


@pytest.fixture
def workers() -> Iterator[ValidatorPool]:
    pool = ValidatorPool(1)
    yield pool
    pool.close()


def test_a_schema_that_may_be_published_has_events_that_are_too_expensive() -> None:
    check_document(json.dumps(DEAR), Bound())
    assert share(judge(), event("x", "dear", a=TINY)) > 1
    ordinary = Validator(Scope(TENANT, (dataset(SCHEMA),)), LIMITS)
    assert share(ordinary, b"x" * 50_000) < 1
    assert ordinary.targets["orders"].checks[None].largest > 50_000


def share(judged: Validator, *payloads: bytes) -> float:
    """Of what is judged inline at most."""
    per_event, byte = judged.pace
    return per_event * len(payloads) + byte * sum(map(len, payloads))


# the drain ---------------------------------------------------------------------------------------


def test_neighbours_of_an_expensive_event_in_a_chunk_land() -> None:
    scope = Scope(TENANT, (dataset(SCHEMA), dear()))
    payloads = [cheap("1"), event("2", "dear", a=TINY), cheap("3"), event("4", "dear", a=TINY[:9])]
    conformed = TopicConformer(scope, "batch", LIMITS).chunk(messages(payloads))
    (letter,) = conformed.dead_letters
    assert (letter.dataset, letter.event_id, letter.message.offset) == ("dear", "2", 1)
    assert (letter.rejected.reason, letter.rejected.pointer) == (Reason.TOO_EXPENSIVE, "/data")
    assert "takes more than 0.3 s" in letter.rejected.detail
    landed = {slug: table.column("id").to_pylist() for slug, table in conformed.tables.items()}
    assert landed == {"orders": ["1", "3"], "dear": ["4"]}


def test_events_that_landed_before_are_judged_without_a_time_limit() -> None:
    payload = event("1", "dear", a=TINY[:5_000])
    assert isinstance(judge(replace(LIMITS, validation_seconds=0.05)).payload(payload), Refusal)
    assert isinstance(judge(UNLIMITED).payload(payload), dict)


def test_aside_the_verdicts_are_the_same() -> None:
    """By judges of which one sends everything aside."""
    inline, aside = judge(), judge()
    for target in aside.targets.values():
        target.checks = {
            version: replace(check, quick=0, largest=0) for version, check in target.checks.items()
        }
    for payload in (cheap("1"), event("2", "orders", count="é\u2028"), event("3", "dear", a=[1.5]), b"[]"):
        assert aside.payload(payload) == inline.payload(payload)


def test_neighbours_of_an_event_that_takes_much_memory_in_a_chunk_land() -> None:
    """A million lists take some 100 MB while they are judged, whatever becomes of them."""
    limits = replace(UNLIMITED, validation_seconds=60, validation_memory_bytes=64 * MB)
    payloads = [cheap("1"), event("2", "dear", a=[[]] * 1_000_000), event("3", "dear", a=TINY[:2_000])]
    conformed = TopicConformer(Scope(TENANT, (dataset(SCHEMA), dear())), "batch", limits).chunk(
        messages(payloads)
    )
    (letter,) = conformed.dead_letters
    assert (letter.event_id, letter.rejected.reason) == ("2", Reason.TOO_EXPENSIVE)
    assert "takes more than 64 MB of memory" in letter.rejected.detail
    landed = {slug: table.column("id").to_pylist() for slug, table in conformed.tables.items()}
    assert landed == {"orders": ["1"], "dear": ["3"]}


@pytest.mark.parametrize("values", [100, 1_000], ids=["judged at once", "judged aside"])
def test_many_expensive_events_of_a_batch_take_a_bounded_time(values: int) -> None:
    """Each may be judged, all of them would take minutes; what is not dear lands, before and after."""
    limits = replace(LIMITS, validation_seconds=60, batch_validation_seconds=0.1)
    scope = Scope(TENANT, (dataset(SCHEMA), dear()))
    assert (share(judge(limits), event("d0000", "dear", a=TINY[:values])) > 1) == (values > 100)
    payloads = [event(f"d{n:04}", "dear", a=TINY[:values]) for n in range(600)]
    payloads[::100] = [cheap(f"o{n:02}") for n in range(6)]
    conformed = TopicConformer(scope, "batch", limits).chunk(messages(payloads))
    landed = {slug: table.column("id").to_pylist() for slug, table in conformed.tables.items()}
    assert landed["orders"] == [f"o{n:02}" for n in range(6)]
    dead_ids = [letter.event_id for letter in conformed.dead_letters]
    assert landed["dear"] + dead_ids == [f"d{n:04}" for n in range(600) if n % 100]
    assert 0 < len(landed["dear"]) < 500
    assert {letter.rejected.reason for letter in conformed.dead_letters} == {Reason.TOO_EXPENSIVE}
    assert "0.1 s beyond their share" in conformed.dead_letters[0].rejected.detail


# the door ----------------------------------------------------------------------------------------


async def beside(
    judged: Validator, payloads: list[bytes], *validators: Validator
) -> tuple[Verdicts, int, list[int]]:
    """Verdicts, how often another task of the event loop ran meanwhile, and in which order judges ended."""
    ticks, ended = 0, []

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def one(number: int, validator: Validator) -> Verdicts:
        validation = Validation([Item(payload) for payload in (payloads if not number else [cheap("x")])])
        while not validation.done:
            if validation.at_end:
                await validation.validate_in_worker(validator)
            validation.go_on(validator)
            await asyncio.sleep(0)
        ended.append(number)
        return validation.verdicts()

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    ticks = 0
    verdicts, *_ = await asyncio.gather(
        *(one(number, validator) for number, validator in enumerate((judged, *validators)))
    )
    ticking.cancel()
    return verdicts, ticks, ended


@pytest.mark.parametrize("on_invalid", ["refuse", "dead_letter"])
def test_the_event_loop_stays_responsive_at_the_door(on_invalid: str) -> None:
    payloads = [cheap("1"), event("2", "dear", a=TINY), cheap("3")]
    verdicts, ticks, ended = asyncio.run(beside(judge(on_invalid=on_invalid), payloads, judge()))
    (notable,) = verdicts.notable
    assert (notable["index"], notable["reason"], notable["pointer"]) == (1, "too_expensive", "/data")
    assert (verdicts.accepted, verdicts.dead_lettered) == (2, int(on_invalid == "dead_letter"))
    published = ["1", "2", "3"] if on_invalid == "dead_letter" else ["1", "3"]
    assert [outgoing.key for outgoing in verdicts.outgoing] == published
    assert ended == [1, 0], "a neighbour's request did not wait"
    assert ticks >= 10, "while 0.3 s of CPU time were used"


def test_many_events_that_may_each_be_judged_at_once_let_others_in_between() -> None:
    judged = judge()
    payloads = [event(str(n), "dear", a=TINY[:100]) for n in range(40)]
    assert share(judged, payloads[0]) < 1 < share(judged, *payloads[:5])
    verdicts, ticks, ended = asyncio.run(beside(judged, payloads, judge()))
    assert (verdicts.accepted, ended) == (40, [1, 0])
    assert ticks >= 5


def test_validation_continues_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent back and forth, and however often, the verdicts are the same and in order."""
    judged = judge(on_invalid="dead_letter")
    payloads = [cheap("1"), event("2", "dear", a=TINY), event("3", "orders", country=5), b"no", cheap("5")]
    payloads += [event(str(n), "dear", a=TINY[:100]) for n in range(6, 30)]
    payloads += [event("30", "none"), event("31", "dear", a="no list"), cheap("32")]
    at_once, _, _ = asyncio.run(beside(judged, payloads))
    assert [entry["index"] for entry in at_once.notable] == [1, 2, 3, 29]
    assert [outgoing.key for outgoing in at_once.outgoing] == ["1", "2", *map(str, range(5, 30)), "31", "32"]

    validation, sizes = Validation([Item(payload) for payload in payloads]), []
    while not validation.at_end:
        sent = pickle.dumps(validation)
        sizes.append(len(sent))
        validation = pickle.loads(sent)  # noqa: S301 - from the line before
        validation.go_on(judge(on_invalid="dead_letter"), seconds=0)
    assert len(sizes) > 3, "a breath ends between events"
    assert validation.size == sum(len(outgoing.payload) for outgoing in validation._outgoing if outgoing)
    while not validation.done:
        asyncio.run(validation.validate_in_worker(judged))
    assert validation.verdicts() == at_once
    assert validation.count == len(payloads)


def test_a_large_request_yields_its_process_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker process does, in this one: parts of a request give what the whole gives."""
    scope = Scope(TENANT, (dataset(SCHEMA),))
    payloads = [cheap("1"), event("2", "orders", country=5), *(cheap(str(n)) for n in range(3, 6_000))]
    body = b"[" + b",".join(payloads) + b"]"
    whole = large.begin(pickle.dumps(scope), body, None, {})
    assert whole.done
    monkeypatch.setattr(large, "MOST_SECONDS", 0.0)
    compressed = gzip.compress(body)
    part, times = large.begin(pickle.dumps(scope), compressed, "gzip", {}), 1
    while not part.at_end:
        part, times = large.go_on(pickle.dumps(scope), part), times + 1
    assert times > 3
    assert part.verdicts() == whole.verdicts()
    assert (whole.verdicts().accepted, whole.verdicts().refused) == (5_998, 1)


def test_no_key_goes_to_a_worker_process() -> None:
    headers = {"authorization": "Bearer secret", "cookie": "s", "content-type": "a", "ce-id": "1"}
    assert describing(headers) == {"content-type": "a", "ce-id": "1"}


# the processes -----------------------------------------------------------------------------------

OPEN = json.dumps({"type": "object", "maxProperties": 1})
EVENT = b'{"data": {"a": 1}}'
BROKEN = b'{"data": {"a": 1, "b": 2}}'


def pid(pool: ValidatorPool) -> int:
    worker = pool._idle.get()
    pool._idle.put(worker)
    assert worker is not None
    return worker._process.pid


def test_a_worker_is_kept_and_one_that_was_ended_is_replaced(workers: ValidatorPool) -> None:
    assert workers.rejected(OPEN, EVENT, 1, MEMORY)[0] is None
    first = pid(workers)
    assert os.getsid(first) == first, "what it computes counts as its own where sessions share processors"
    refused, _ = workers.rejected(OPEN, BROKEN, 1, MEMORY)
    assert refused is not None
    assert (refused.reason, refused.pointer) == (Reason.SCHEMA_VIOLATION, "/data")
    assert pid(workers) == first
    os.kill(first, signal.SIGKILL)
    assert workers.rejected(OPEN, EVENT, 1, MEMORY)[0] is None, "nobody's verdict"
    assert pid(workers) != first


def test_a_worker_that_stands_still_is_given_up(
    workers: ValidatorPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers.rejected(OPEN, EVENT, 1, MEMORY)[0] is None
    stop([pid(workers)])
    monkeypatch.setattr(worker_pool, "PATIENCE", 0.01)  # its successor has not even started by then
    refused, _ = workers.rejected(OPEN, EVENT, 1, MEMORY)
    monkeypatch.undo()
    assert refused is not None
    assert refused.reason is Reason.TOO_EXPENSIVE
    assert workers.rejected(OPEN, EVENT, 1, MEMORY)[0] is None


PATTERNS = [{"not": {"pattern": f"[ab]*a[ab]{{{number}}}c"}} for number in range(150, 250)]
"""What the validator keeps of a match, for the next one, grows with the states that it comes by."""


def matched(first: int, seed: int) -> tuple[str, bytes]:
    """A schema of one hundred patterns, and an event of which each meets a string of its own."""
    draw = random.Random(seed)  # noqa: S311
    properties = {f"p{first + number}": pattern for number, pattern in enumerate(PATTERNS)}
    data = {name: "".join(draw.choices("ab", k=2_500)) for name in properties}
    return json.dumps({"type": "object", "properties": properties}), json.dumps({"data": data}).encode()


def most_memory(pool: ValidatorPool) -> int:
    """Bytes that the worker has had at a time."""
    status = Path(f"/proc/{pid(pool)}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_memory_of_many_schemas_in_a_worker_is_bounded(workers: ValidatorPool) -> None:
    check_document(matched(0, 0)[0], Bound())
    processes: list[int] = []
    while len(set(processes)) < 2:
        document, payload = matched(len(processes), len(processes))
        assert workers.rejected(document, payload, 60, 80 * MB)[0] is None
        processes.append(pid(workers))
        assert most_memory(workers) < 128 * MB
        assert len(processes) < 9, "one process kept what all of them left"


def test_memory_of_many_events_of_a_schema_is_bounded(workers: ValidatorPool) -> None:
    for seed in range(4):
        document, payload = matched(0, seed)
        assert workers.rejected(document, payload, 60, 512 * MB)[0] is None
    assert most_memory(workers) < 96 * MB


def test_workers_end_with_the_process_that_started_them() -> None:
    program = (
        "from pulse_pipelines.validation.worker_pool import *\n"
        f"found = ValidatorPool(1); found.rejected({OPEN!r}, {EVENT!r}, 1, {MEMORY})\n"
        "print(found._idle.get()._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    until = time.monotonic() + PATIENCE_S
    while alive(int(done.stdout)):
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
