"""Queries in processes of tests' own, with every layer of the sandbox but those that a test switches off."""

import functools
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from chaos.waiting import PATIENCE_S
from pulse_pipelines.ask import local
from pulse_pipelines.query.formats import JSON
from pulse_pipelines.sql import processes as pool
from pulse_pipelines.sql.confinement import Confinement
from pulse_pipelines.sql.engine import View
from pulse_pipelines.sql.limits import Limits
from pulse_pipelines.sql.processes import Processes
from pulse_resources.errors import PulseError

LIMITS = Limits(seconds=PATIENCE_S, memory_bytes=256 * 2**20, threads=2, rows=1_000, bytes=2**20)
NOWHERE = {"address": "127.0.0.1:9", "secure": False, "ca_file": "", "region": "us-east-1"}
TEMPLATE = str(Path(__file__).with_name("sql_template.py"))


def local_view(table: Table, **members: Any) -> View:
    """A view of a table on this machine, which needs no key, with its list of manifests."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return View(
        name=".".join(table.name()),
        metadata_location=table.metadata_location,
        snapshot_id=None,
        folder="",
        empty=False,
        access_key="",
        secret_key="",
        session_token="",
        manifest_list=snapshot.manifest_list,
        **members,
    )


@contextmanager
def listening(reply: bytes = b"") -> Iterator[tuple[int, list[socket.socket]]]:
    """A port at which whoever connects gets this reply, and the connections that there were."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                connection.sendall(reply)
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1], connections


@contextmanager
def processes(off: Sequence[str] = (), limits: Limits = LIMITS, port: int = 9) -> Iterator[Processes]:
    """Processes without some layers: gate, landlock, locks, limits."""
    cpu = int(limits.seconds * limits.threads * 2)
    confinement = Confinement(limits.memory_bytes, cpu, (port,), (), landlock="landlock" not in off)
    workers = Processes(confinement, 0, (sys.executable, "-I", TEMPLATE, ",".join(off)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "_BEGINNING_S", PATIENCE_S)
        patch.setattr(pool, "_ENDING_S", PATIENCE_S)
        try:
            yield workers
        finally:
            workers.stop()


@pytest.fixture
def shared_processes() -> Iterator[None]:
    """Commands of the line of this process use one pool; else each would wait for the start of its own."""
    make_processes, stop = functools.cache(Processes), Processes.stop
    shared: list[Processes] = []

    def share(*arguments: Any, **more: Any) -> Processes:
        workers = make_processes(*arguments, **more)
        if workers not in shared:
            shared.append(workers)
        return workers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "Processes", share)
        patch.setattr(local, "Processes", share)
        patch.setattr(Processes, "stop", lambda _: None)
        yield
    for workers in shared:
        stop(workers)


def ask(
    workers: Processes,
    sql: str,
    *,
    media_type: str = JSON,
    limits: Limits = LIMITS,
    views: Sequence[View] = (),
    store: dict[str, object] | None = None,
) -> bytes:
    """What a query gives. Raises PulseError, or TimeUpError."""
    until = time.monotonic() + limits.seconds
    with workers.take() as process:
        process.ask({"sql": sql}, until, 2**16)
        job = {
            "store": store or NOWHERE,
            "views": [asdict(view) for view in views],
            "limits": asdict(limits),
            "media_type": media_type,
            "about": {"query_id": "q", "snapshots": {}},
        }
        _, content = process.ask(job, until, 2**24)
        return content


def rows(workers: Processes, sql: str, **how: object) -> list[dict[str, object]]:
    content: list[dict[str, object]] = json.loads(ask(workers, sql, **how))["rows"]  # type: ignore[arg-type]
    return content


def answer_text(workers: Processes, sql: str, **how: object) -> str:
    """What it gives, or says is wrong: everything that comes out."""
    try:
        return ask(workers, sql, **how).decode(errors="replace")  # type: ignore[arg-type]
    except PulseError as error:
        return str(error)


def less(**values: object) -> Limits:
    return replace(LIMITS, **values)  # type: ignore[arg-type]
