"""Rows that a broker refuses fail the run, although only failures are reported."""

import os
from contextlib import suppress

import pytest
from support.ingest import Owner
from support.topics import limited

from pulse_pipelines.pipes.publishing import POLLED, publish
from pulse_resources import kafka
from pulse_resources.errors import Transient


def test_rows_that_the_broker_refuses_fail_the_run(owner: Owner) -> None:
    small, large = (b"k", b"row"), (b"k", os.urandom(2_000))
    assert publish(owner.tenant.topic, [small] * (POLLED + 1)).rows == POLLED + 1
    with limited(owner.tenant.topic, 1_000):
        for rows in ([large], [small, large] * POLLED):
            with pytest.raises(Transient, match="did not acknowledge rows"):
                publish(owner.tenant.topic, rows)


def test_no_more_waits_in_memory_than_a_task_has(owner: Owner) -> None:
    """The broker does not take rows as fast as they are made."""
    producer, row = kafka.producer(in_bulk=True), os.urandom(1024 * 1024)
    buffered = 0
    with suppress(BufferError):
        while buffered < 1_000:
            producer.produce("a-topic-that-is-nowhere", row)
            buffered += 1
    assert buffered == 64
    producer.purge()
    rows = [(str(n).encode(), row) for n in range(200)]
    assert publish(owner.tenant.topic, rows).bytes == 200 * len(row)
