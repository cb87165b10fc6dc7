"""Small objects written by Pulse's own request and by Arrow's client, in turns."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks import cpu
from pulse_pipelines.ingest.batch_files import UPLOADS
from pulse_resources import object_store
from pulse_resources.object_store import small_put


def measure(objects: int, size: int, times: int) -> Iterator[tuple[str, float, float]]:
    """By whom they are written; milliseconds of processor time per object: of this process, of the store."""
    content = os.urandom(size)
    for _ in range(times):
        for name, write in (("Pulse", _by_pulse), ("Arrow", _by_arrow)):
            folder = f"pulse/benchmark/{uuid.uuid4().hex}"
            yield (
                name,
                *(1e3 * seconds / objects for seconds in _spent(partial(write, content), folder, objects)),
            )


def _spent(write: Callable[[str], object], folder: str, objects: int) -> tuple[float, float]:
    with cpu.sampled() as seconds, ThreadPoolExecutor(UPLOADS) as pool:
        before = time.process_time()
        list(pool.map(write, (f"{folder}/day={number}/{number}" for number in range(objects))))
        spent = time.process_time() - before
        time.sleep(2 * cpu.PERIOD_S)  # for the last sample
    return spent, seconds["minio"]


def _by_pulse(content: bytes, path: str) -> None:
    assert small_put.put(path, memoryview(content)), "the store did not take it"


def _by_arrow(content: bytes, path: str) -> None:
    with object_store.file_system().open_output_stream(path, compression=None) as sink:
        sink.write(content)
