"""Batches that a producer compressed: a few hundred bytes may become gigabytes when they are read."""

import multiprocessing
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import Producer
from support.backfill import balanced
from support.ingest import Owner, event, ingest, plan_batch, run_batch

from chaos.surroundings import with_settings
from pulse_pipelines.domain.attempt_scope import Scope
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.ingest import attempts, drain, isolate, messages, plan
from pulse_pipelines.ingest.stages import PartitionCount
from pulse_resources import kafka
from pulse_resources.process import memory

ZEROS = bytes(1_000_000)
MIB = 1024**2


def send_compressed(owner: Owner, codec: str, payloads: Sequence[bytes], *, together: bool = False) -> None:
    """Send as a producer of the tenant's own may: each message compressed alone, or all as one batch."""
    settings = kafka.client_settings() | {
        "compression.type": codec,
        "batch.num.messages": len(payloads) if together else 1,
        "batch.size": 200 * MIB,
        "message.max.bytes": 200 * MIB,
        "linger.ms": 3_000 if together else 0,
    }
    producer = Producer(settings)
    for number, payload in enumerate(payloads, 1):
        producer.produce(owner.tenant.topic, payload, partition=0)
        if number % 500 == 0 and not together:
            assert kafka.flush(producer, 60) == 0
    assert kafka.flush(producer, 60) == 0


def read_within(limit: int, owner: Owner, count: int) -> None:
    """Read a topic by default fetches, with so much more memory; exits with 1 if not all came."""
    memory.limit(memory.data_bytes() + limit)
    counts = {0: PartitionCount()}
    of = [OffsetRange(owner.tenant.tenant_id, 0, 0, count)]
    for _ in messages.read(Scope(owner.tenant, ()), of, counts, 10_000):
        pass
    assert (counts[0].drained, counts[0].bytes) == (count, count * len(ZEROS))


def test_messages_that_unpack_to_gigabytes_are_read_in_little_memory(owner: Owner) -> None:
    send_compressed(owner, "zstd", [ZEROS] * 700)
    process = multiprocessing.get_context("forkserver").Process(
        target=read_within, args=(512 * MIB, owner, 700)
    )
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_tenant_whose_events_are_large_has_its_own_batches_from_then_on(
    new_owner: Callable[[], Owner],
) -> None:
    owner, neighbour = new_owner(), new_owner()
    send_compressed(owner, "zstd", [ZEROS] * 3)
    ingest(owner)
    assert balanced(owner) == (0, 0, 3)
    send_compressed(owner, "zstd", [ZEROS] * 12)
    neighbour.send(event("a"))
    sizes = {}
    for sender in (owner, neighbour):
        (backlog,) = plan.ingest_status({sender.tenant.tenant_id}).backlogs
        sizes[sender] = backlog.event_bytes
        assert backlog.is_bulk(2_000) is (sender is owner), "by their bytes, not by their number"
    assert sizes == {owner: len(ZEROS), neighbour: 0}
    with with_settings(INGEST__FLUSH_ROWS=2_000):
        batch = plan_batch([owner])
    assert attempts.load_plan(batch, 1).bulk
    run_batch(batch)
    assert balanced(owner) == (0, 0, 15)


@pytest.mark.slow  # gigabytes of dead letters
def test_a_shared_job_that_runs_out_of_memory_reads_smaller_pieces_next(
    new_owner: Callable[[], Owner],
) -> None:
    owner, neighbour = new_owner(), new_owner()
    send_compressed(owner, "zstd", [ZEROS] * 3_500)
    neighbour.send(event("a"))
    batch = plan_batch([owner, neighbour])
    with with_settings(SPARK__TASK_MEMORY_MB=3_072):
        assert not run_batch(batch, 1, raise_on_error=False), "fetched at once, it takes 3.5 GB"
        run_batch(batch, 2)
    assert balanced(neighbour) == (1, 0, 0)
    assert balanced(owner) == (0, 0, 3_500)


def test_messages_that_cannot_be_decompressed_become_empty_dead_letters(owner: Owner) -> None:
    """zstd unpacks to at most 100 MB per batch."""
    owner.send(event("before"))
    send_compressed(owner, "zstd", [bytes(40 * MIB)] * 3, together=True)
    owner.send(event("after"))
    batch = plan_batch([owner])
    for number in (1, 2):
        assert not run_batch(batch, number, raise_on_error=False)
    run_batch(batch, 3)
    assert {row["id"] for row in owner.rows()} == {"before", "after"}
    assert balanced(owner) == (2, 0, 3)
    letters = owner.dead_letters()
    assert {(letter["reason"], letter["payload"]) for letter in letters} == {(Reason.PROCESSING_FAILED, b"")}
    assert {letter["detail"] for letter in letters} == {isolate.UNREADABLE}


def test_a_message_beyond_the_limit_of_messages_is_cut_there(owner: Owner) -> None:
    send_compressed(owner, "gzip", [bytes(50_000_000)])
    ingest(owner)
    (letter,) = owner.dead_letters()
    assert letter["payload"] == bytes(kafka.MAX_MESSAGE_BYTES)


def test_pieces_become_smaller_with_each_attempt_and_are_small_for_large_events(owner: Owner) -> None:
    owner.send(event("a"))
    batch = plan_batch([owner])
    scopes = [Scope(owner.tenant, (), event_bytes=size) for size in (0, 4_096, 4_097)]
    pieces = [
        [drain._fetch_bytes(attempts.load_plan(batch, attempt), scope) for attempt in (1, 2, 3, 9)]
        for scope in scopes
    ]
    ordinary = [2 * MIB, 64 * 1024, 4_096, 4_096]
    assert pieces == [ordinary, ordinary, [4_096] * 4]
