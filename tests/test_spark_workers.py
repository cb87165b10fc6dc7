"""Spark's Python workers are forked from a daemon that has imported what their tasks need."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulse_pipelines import spark_daemon
from pulse_resources import spark
from pulse_resources.settings import Settings


def test_workers_are_forked_from_our_daemon(stack: Settings) -> None:
    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the worker's parent was started with."""
        for _ in batches:
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            yield pa.record_batch([pa.array([words])], names=["words"])

    with spark.session() as session:
        frame: Any = session.range(1).mapInArrow(parent, "words binary")
        words = bytes(frame.toArrow().column("words")[0].as_py())
    assert spark_daemon.__name__.encode() in words.split(b"\0")
