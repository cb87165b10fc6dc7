"""Offsets of many partitions at once, also where topics are missing."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError, KafkaException
from support.ingest import Owner, event
from support.topics import delete_topic, recreate

from pulse_resources import kafka

ASK = """
import sys, threading, time
from pulse_resources import kafka
until, asked = time.monotonic() + 5, [(topic, 0) for topic in sys.argv[1:]]
def ask():
    while time.monotonic() < until:
        found = kafka.offsets(asked, "latest")
        assert [isinstance(found[where], int) for where in asked] == [True, False, False]
threads = [threading.Thread(target=ask) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""


def test_threads_that_ask_for_missing_topics_at_once(owner: Owner) -> None:
    """librdkafka's `list_offsets` ended the process within seconds: it worked on one query in two threads."""
    command = [sys.executable, "-c", ASK, owner.tenant.topic, "nowhere", "nor-here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def code(answer: int | KafkaException) -> int:
    assert isinstance(answer, KafkaException)
    return int(answer.args[0].code())


def test_an_unknown_partition_does_not_hide_other_offsets(owner: Owner) -> None:
    owner.send(event("a"), event("b"))
    existing, beyond, nowhere = (owner.tenant.topic, 0), (owner.tenant.topic, 77), ("nowhere", 0)
    for end, expected in (("earliest", 0), ("latest", 2)):
        offsets = kafka.offsets([nowhere, existing, beyond], end)
        assert offsets.keys() == {nowhere, existing, beyond}
        assert offsets[existing] == expected
        assert code(offsets[beyond]) == KafkaError._UNKNOWN_PARTITION
        assert code(offsets[nowhere]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert isinstance(kafka.offsets([nowhere], "latest")[nowhere], KafkaException)
    assert kafka.offsets([], "latest") == {}


def test_offsets_by_time(owner: Owner) -> None:
    owner.send(event("a"))
    where, now = (owner.tenant.topic, 0), datetime.now(UTC)
    assert kafka.offsets([where], now - timedelta(hours=1)) == {where: 0}
    assert kafka.offsets([where], now + timedelta(hours=1)) == {where: -1}


def test_a_topic_that_was_just_deleted_hides_no_other(new_owner: Callable[[], Owner]) -> None:
    """The client remembers that it was there, and the broker's error is then that of the whole request."""
    owners = [new_owner() for _ in range(5)]
    where = [(owner.tenant.topic, partition) for owner in owners for partition in range(2)]
    assert set(kafka.offsets(where, "latest").values()) == {0}
    delete_topic(owners[3])
    offsets = kafka.offsets(where, "latest")
    failed = [pair for pair, answer in offsets.items() if not isinstance(answer, int)]
    assert failed == [(owners[3].tenant.topic, partition) for partition in range(2)]
    recreate(owners[1])
    assert kafka.offsets(where[:6], "latest") == dict.fromkeys(where[:6], 0)
