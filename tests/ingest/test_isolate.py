"""Halving finds exactly the events at fault, and blames none for an outage."""

import uuid
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, strategies as st

from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.ingest import isolate
from pulse_pipelines.ingest.isolate import Outcomes
from pulse_pipelines.ingest.probe import Probe, probe_task
from pulse_pipelines.ingest.stages import Failure, PartitionCount, TopicDrained
from pulse_pipelines.tables.raw_zone import Message
from pulse_pipelines.validation.limits import event_limits

TENANT = uuid.UUID(int=1)
FOR_EVER = 1e9
Places = set[tuple[int, int]]


class Topic:
    """Drains like the real one: a job fails as a whole when one of its events is poison."""

    def __init__(self, poison: Collection[tuple[int, int]], outage_after: int | None = None) -> None:
        self.poison = set(poison)
        self.outage_after = outage_after
        self.jobs = 0
        self.drained: list[tuple[int, int]] = []
        self.aside: dict[tuple[int, int], str] = {}

    def __call__(self, ranges: Sequence[OffsetRange], why: str | None = None) -> Outcomes:
        self.jobs += 1
        assert len({r.partition for r in ranges}) == len(ranges), "a reader knows one range of a partition"
        if self.outage_after is not None and self.jobs > self.outage_after:
            return [Failure(TENANT, "drain_and_conform", "Transient: the broker does not answer")]
        places = [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
        if why is not None:
            self.aside |= dict.fromkeys(places, why)
        elif self.poison & set(places):
            return [Failure(TENANT, "drain_and_conform", isolate.DIED, by_event=True)]
        else:
            self.drained += places
        counts = {r.partition: PartitionCount(drained=r.length) for r in ranges}
        return [TopicDrained(TENANT, 0, counts, (), (), {})]


def ranges(*lengths: int) -> list[OffsetRange]:
    return [OffsetRange(TENANT, partition, 5, 5 + length) for partition, length in enumerate(lengths)]


def places(of: Sequence[OffsetRange]) -> Places:
    return {(r.partition, offset) for r in of for offset in range(r.start, r.end)}


def unexpected_probe() -> bool:
    raise AssertionError("some of the events passed, or an outage explains it")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.booleans(), st.data())
def test_exactly_the_poison_is_set_aside(lengths: list[int], sound: bool, data: st.DataObject) -> None:
    whole = ranges(*lengths)
    everything = sorted(places(whole))
    poison = set(data.draw(st.lists(st.sampled_from(everything), unique=True)))
    topic = Topic(poison)
    outcomes = isolate.isolate(whole, topic, lambda: sound, FOR_EVER)
    if poison == set(everything) and not sound:
        assert topic.aside == {}, "not the events are at fault"
        assert [type(outcome) for outcome in outcomes] == [Failure]
        assert not isolate.needed(outcomes)
        return
    assert topic.aside.keys() == poison
    assert sorted(topic.drained) == sorted(set(everything) - poison), "each once"
    total = sum(count.drained for topic in outcomes for count in topic.partitions.values())
    assert total == len(everything)


def test_the_event_of_the_probe_lands() -> None:
    (answer,) = probe_task(Probe(event_limits()))
    assert answer.rows == 1


def test_one_among_many_takes_a_job_or_two_for_each_halving() -> None:
    topic = Topic({(0, 4_711)})
    isolate.isolate(ranges(10_000), topic, unexpected_probe, FOR_EVER)
    assert topic.jobs <= 2 * 14 + 1


def test_an_outage_blames_nobody() -> None:
    topic = Topic({(0, 9)}, outage_after=3)
    outcomes = isolate.isolate(ranges(100), topic, unexpected_probe, FOR_EVER)
    assert [type(outcome) for outcome in outcomes] == [Failure]
    assert topic.aside == {}
    assert not isolate.needed(outcomes)


def test_ranges_left_when_the_time_is_over_are_set_aside_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 2.0, *[99.0] * 99])
    monkeypatch.setattr("pulse_pipelines.ingest.isolate.time.monotonic", lambda: next(moments))
    topic = Topic({(0, 6)})
    isolate.isolate(ranges(64), topic, unexpected_probe, 50.0)
    assert topic.drained, "a half of it passed in time"
    assert (0, 6) in topic.aside
    assert topic.aside.keys() | set(topic.drained) == places(ranges(64))
    assert set(topic.aside.values()) == {isolate.TOO_MANY}


@pytest.mark.parametrize(
    ("payload", "names"),
    [
        (b'{"event_id": "a", "dataset": "orders"}', ("orders", "a")),
        (b"\xff no json", (None, None)),
        (b'{"event_id": "\\ud800", "dataset": "orders"}', (None, None)),
        (b"[" * 100_000, (None, None)),
        (b"", (None, None)),
    ],
)
def test_an_event_set_aside_keeps_its_bytes_and_storable_names(
    payload: bytes, names: tuple[str | None, str | None]
) -> None:
    conformed = isolate.dead_letters("why", [Message(0, 7, 1, payload)])
    assert conformed.tables == {}
    (letter,) = conformed.dead_letters
    assert (letter.dataset, letter.event_id) == names
    assert (letter.message.payload, letter.rejected.reason) == (payload, Reason.PROCESSING_FAILED)
    assert letter.rejected.detail == "why"
