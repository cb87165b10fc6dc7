"""Worker processes of the API: they end with it, and one that dies costs one request. No services."""

import asyncio
import gc
import io
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar, cast

import pytest

from chaos.harm import hostile
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http import workers as pool
from pulse_api.http.workers import NICENESS, Workers
from pulse_pipelines.domain.pipe_sources import Files, Format
from pulse_pipelines.pipes.files import formats
from pulse_resources.errors import NotFound, Transient, UserError

pytestmark = pytest.mark.long

Result = TypeVar("Result")
SERVER = """
import multiprocessing, os, time
from pulse_api.http.workers import Workers
if __name__ == "__main__":
    workers = Workers(2, os.getpid, patience=300)
    workers.start()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""
KEPT: list[bytes] = []


@contextmanager
def running(
    processes: int = 1, patience: float = PATIENCE_S, memory_bytes: int | None = None
) -> Iterator[Callable[..., object]]:
    """Has a worker do something, and gives what came of it."""
    workers = Workers(processes, os.getpid, patience=patience, memory_bytes=memory_bytes)
    try:
        workers.start()
        yield lambda work, *args: asyncio.run(workers.run(work, *args))
    finally:
        workers.stop()


def refuse(slug: str) -> None:
    raise NotFound("the tenant has no such dataset", fix="Create it", dataset=slug)


def test_work_is_done_in_another_process_that_leaves_processors_to_this_one() -> None:
    with running() as do:
        assert do(os.getpid) not in (os.getpid(), None)
        assert do(os.getsid, 0) not in (os.getsid(0), None)  # sessions share the processors
        assert do(os.getpriority, os.PRIO_PROCESS, 0) == NICENESS
        with pytest.raises(NotFound, match="no such dataset") as caught:
            do(refuse, "orders")
        assert (caught.value.fix, caught.value.where) == ("Create it", {"dataset": "orders"})


def schema_of(content: bytes) -> object:
    """As to create a pipe does that reads such a file."""
    return formats.schema(io.BytesIO(content), Files("shop", "x", Format.PARQUET, ("tail",)), "x")


def highest_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def test_a_task_beyond_its_memory_limit_ends_alone() -> None:
    """A Parquet file of 18 MB whose footer would take four gigabytes."""
    with running(memory_bytes=256 * 2**20) as do:
        before, started_with = do(os.getpid), cast(int, do(highest_mib))
        with pytest.raises(UserError, match="more memory than it may have"):
            do(bytes, 2**30)
        with pytest.raises((UserError, Transient)):
            do(schema_of, hostile.parquet(groups=60))
        if do(os.getpid) == before:
            assert cast(int, do(highest_mib)) < started_with + 400
        assert do(schema_of, hostile.parquet(1, 1)) is not None


def keep(size: int) -> None:
    """As a library that keeps what a server sent."""
    KEPT.append(bytes(size))


def keep_and_fail(size: int) -> None:
    keep(size)
    raise NotFound("the server has ended the connection")


def test_a_process_that_keeps_much_memory_serves_no_further_request() -> None:
    """The next one is perhaps another tenant's, and would fail for a reason that it has no part in."""
    with running(memory_bytes=256 * 2**20) as do:
        first = do(os.getpid)
        do(keep, 100 * 2**20)
        assert do(os.getpid) == first
        do(keep, 100 * 2**20)
        second = do(os.getpid)
        assert second != first
        with pytest.raises(NotFound):
            do(keep_and_fail, 200 * 2**20)
        assert do(os.getpid) != second


def test_the_environment_is_that_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as do:
        do(os.getpid)  # the fork server has begun
    monkeypatch.setenv("PULSE_SAID_LATER", "yes")
    with running() as do:
        assert do(os.getenv, "PULSE_SAID_LATER") == "yes"


def test_a_process_that_dies_costs_one_request() -> None:
    with running() as do:
        for _ in range(2):
            with pytest.raises(Transient, match="has ended"):
                do(os.kill, do(os.getpid), signal.SIGKILL)
            assert do(os.getpid)


def die_in_the_middle_of_an_answer() -> None:
    """As one does that is killed while it writes more than a pipe holds."""
    to_server = [
        connection
        for connection in gc.get_objects()
        if isinstance(connection, Connection) and connection.writable
    ]
    for connection in to_server:
        os.write(connection.fileno(), struct.pack("!i", 1_000_000) + b"the first of it")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_in_the_middle_of_its_answer_costs_one_request() -> None:
    with running() as do:
        with pytest.raises(Transient, match="has ended"):
            do(die_in_the_middle_of_an_answer)
        assert do(os.getpid)


def test_a_process_that_gives_no_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = pool._Worker.ask

    def ask_with_patience(
        worker: pool._Worker, work: Callable[..., object], args: tuple[object, ...]
    ) -> object:
        """Only the stopped process has no more than its second, however slowly another one begins."""
        worker._patience = 1.0 if work is os.kill else PATIENCE_S
        return ask(worker, work, args)

    monkeypatch.setattr(pool._Worker, "ask", ask_with_patience)
    with running(patience=1.0) as do:
        stopped = do(os.getpid)
        with pytest.raises(Transient, match="took more than 1 s"):
            do(os.kill, stopped, signal.SIGSTOP)
        assert do(os.getpid) != stopped


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process of the request had none at all, which sleeps."""
    monkeypatch.setattr(pool, "starved", lambda _: time.monotonic())
    with running(patience=0.5) as do:
        assert do(time.sleep, 2.0) is None
        monkeypatch.setattr(pool, "BUSY_S", 1.0)
        with pytest.raises(Transient, match="took more than"):
            do(time.sleep, 2 * PATIENCE_S)


def test_a_process_that_others_keep_from_computing_is_starved() -> None:
    one = {min(os.sched_getaffinity(0))}
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, one)
        wait(
            lambda: all(pool.starved(process.pid) > 0.1 for process in spinning), "both have all they ask for"
        )
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert pool.starved(spinning[0].pid) == 0, "it has ended"


def unpicklable() -> Callable[[], None]:
    return lambda: None


def test_an_answer_that_cannot_be_sent_is_an_error_of_its_request() -> None:
    with running() as do:
        before = do(os.getpid)
        with pytest.raises(Exception, match="pickle"):
            do(unpicklable)
        assert do(os.getpid) == before


def test_an_unexpected_error_of_a_worker_keeps_its_traceback() -> None:
    with running() as do:
        with pytest.raises(json.JSONDecodeError) as caught:
            do(json.loads, "{")
        assert "in raw_decode" in "".join(traceback.format_exception(caught.value))


def test_workers_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        workers = [int(pid) for pid in server.stdout.readline().split()]
        assert workers
        assert all(Path(f"/proc/{pid}").exists() for pid in workers)
        server.kill()
    wait(lambda: not any(_runs(pid) for pid in workers), "they would hold memory for ever")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_caller_that_is_cancelled_waits_until_the_process_is_free(tmp_path: Path) -> None:
    beginning, end = tmp_path / "begun", tmp_path / "end"
    os.mkfifo(end)
    workers = Workers(1, os.getpid)

    async def cancel() -> None:
        working = asyncio.create_task(workers.run(_begin_and_wait, beginning, end))
        await asyncio.to_thread(wait, beginning.exists, "it has not begun")
        working.cancel()
        done, _ = await asyncio.wait([working], timeout=0.2)
        assert not done
        await asyncio.to_thread(end.write_text, "")
        with pytest.raises(asyncio.CancelledError):
            await working

    try:
        asyncio.run(cancel())
    finally:
        workers.stop()


def _begin_and_wait(beginning: Path, end: Path) -> None:
    beginning.touch()
    end.read_text()
