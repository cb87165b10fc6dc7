"""Spark's Python workers are forked from a daemon that has imported what their tasks need."""

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession

from chaos.waiting import wait
from pulse_pipelines import spark_daemon
from pulse_resources import spark
from pulse_resources.settings import Settings

DAEMON = "from pulse_pipelines import spark_daemon; spark_daemon.LOOK_S = 0.7; spark_daemon.main()"


def daemon_of(session: SparkSession) -> tuple[int, list[bytes]]:
    """The process that this session's workers are forked from, and what it was started with."""

    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            yield pa.record_batch([pa.array([os.getppid()]), pa.array([words])], names=["pid", "words"])

    frame: Any = session.range(1).mapInArrow(parent, "pid long, words binary")
    (found,) = frame.toArrow().to_pylist()
    return found["pid"], bytes(found["words"]).split(b"\0")


def test_workers_are_forked_from_our_daemon(stack: Settings) -> None:
    with spark.session() as session:
        _, words = daemon_of(session)
    assert spark_daemon.__name__.encode() in words


@pytest.mark.slow
def test_spark_starts_another_daemon_when_it_wants_a_worker_again(stack: Settings) -> None:
    with spark.session() as session:
        first, _ = daemon_of(session)
        wait(lambda: not Path(f"/proc/{first}").exists(), "the daemon stays without workers", 300)
        second, _ = daemon_of(session)
    assert second != first


def test_a_daemon_without_workers_leaves() -> None:
    def number() -> int:
        return int(struct.unpack("!i", process.stdout.read(4))[0])

    environment = dict(os.environ) | {"PYTHON_WORKER_FACTORY_SECRET": "none"}
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        with socket.create_connection(("127.0.0.1", number())) as connection:
            assert struct.unpack("!i", connection.recv(4))[0] > 0, "the worker"
            time.sleep(5)
            assert process.poll() is None, "it has a worker"
        assert process.wait(30) == 0
