"""A wall clock that is set back an hour while Pulse waits for Kafka: librdkafka waits for an hour."""

import os
import subprocess
import sys
import time

from support.ingest import Owner

from chaos.clock import Clock
from chaos.waiting import PATIENCE_S

# The producers stay: one that hangs could not be closed. Nor may the process close them as it ends.
SEND = """
import os, sys, time
from pulse_resources import kafka
until, producers = time.monotonic() + 5, []
while time.monotonic() < until:
    producers.append(kafka.producer())
    producers[-1].produce(sys.argv[1], b"x")
    kafka.flush(producers[-1], 1)
os._exit(0)
"""


def test_a_producer_ends_in_time_despite_clock_changes(owner: Owner) -> None:
    clock = Clock.made()
    command = [sys.executable, "-c", SEND, owner.tenant.topic]
    process = subprocess.Popen(command, env=os.environ | clock.environment)
    try:
        for _ in range(2):
            with clock.wrong_by(1):
                time.sleep(1.5)
            time.sleep(1.5)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        clock.remove()
