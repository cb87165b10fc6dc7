"""What Spark holds beside tasks: forked Python workers, their daemon, connections to the catalog."""

import gc
import os
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.connect.session import SparkSession

from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S, wait
from pulse_pipelines.runtime import spark_daemon
from pulse_resources import spark
from pulse_resources.iceberg import CATALOG
from pulse_resources.local import state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings

DAEMON = """
from pulse_pipelines.runtime import spark_daemon
spark_daemon.CHECK_INTERVAL_S = 0.3
spark_daemon.main()
"""


def daemon_of(session: SparkSession) -> tuple[int, list[bytes]]:
    """The process that this session's workers are forked from, and what it was started with."""

    def parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            yield pa.record_batch([pa.array([os.getppid()]), pa.array([words])], names=["pid", "words"])

    frame: Any = session.range(1).mapInArrow(parent, "pid long, words binary")
    (row,) = frame.toArrow().to_pylist()
    return row["pid"], bytes(row["words"]).split(b"\0")


def test_workers_are_forked_from_our_daemon(stack: Settings) -> None:
    with spark.session() as session:
        _, words = daemon_of(session)
    assert spark_daemon.__name__.encode() in words


def test_workers_do_not_collect_objects_that_their_daemon_imported(stack: Settings) -> None:
    def frozen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch([pa.array([gc.get_freeze_count()])], names=["objects"])

    with spark.session() as session:
        frame: Any = session.range(1).mapInArrow(frozen, "objects long")
        (row,) = frame.toArrow().to_pylist()
    assert row["objects"] > 10_000


ARCHIVED = """
import importlib, sys
opened = []
sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" else None)
from pulse_pipelines.runtime import spark_daemon
spark_daemon.read_archives_once()
import inside.first
opened.clear()
importlib.invalidate_caches()  # as pyspark's workers do before each task
print(opened.count(sys.path[0]))
import inside.second
print(inside.second.__file__)
"""


def test_directories_of_archives_are_not_read_again_before_each_task(tmp_path: Path) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for name in ("__init__", "first", "second"):
            target.writestr(f"inside/{name}.py", "")
    program = f"import sys; sys.path.insert(0, {str(archive)!r})\n{ARCHIVED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", str(archive / "inside" / "second.py")]


def test_temporary_files_of_spark_are_in_the_home(stack: Settings) -> None:
    """And not among the temporary files of the machine, where they would stay."""
    recorded = state.read(Layout(stack.home))
    assert recorded
    server = recorded.services["spark"].process
    assert server
    (place,) = (
        word.partition(b"=")[2]
        for word in Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
        if word.startswith(b"-Djava.io.tmpdir=")
    )
    assert Path(os.fsdecode(place)) == stack.home / "spark" / "tmp"
    assert list((stack.home / "spark" / "tmp").glob("spark-*"))


@pytest.mark.slow
def test_spark_starts_another_daemon_when_it_wants_a_worker_again(stack: Settings) -> None:
    with spark.session() as session:
        first, _ = daemon_of(session)
        wait(lambda: not Path(f"/proc/{first}").exists(), "the daemon stays without workers")
        second, _ = daemon_of(session)
    assert second != first


@pytest.mark.long
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
            time.sleep(2)  # longer than one without workers stays
            assert process.poll() is None, "it has a worker"
        assert process.wait(PATIENCE_S) == 0


def test_a_worker_has_the_installed_pyspark_which_is_compiled(stack: Settings) -> None:
    def origin(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            yield pa.record_batch([pa.array([pyspark.__file__])], names=["file"])

    with spark.session() as session:
        frame: Any = session.range(1).mapInArrow(origin, "file string")
        (row,) = frame.toArrow().to_pylist()
    assert row["file"] == pyspark.__file__


def test_archives_stay_on_the_path_where_no_pyspark_or_another_one_is_installed(tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    own = installed / "pyspark" / "python" / "lib" / "pyspark.zip"
    for file in (elsewhere, own, installed / "pyspark" / "__init__.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    path = [str(own), str(elsewhere), str(installed)]
    assert spark_daemon.installed_instead_of_archives(path) == path[1:]
    assert spark_daemon.installed_instead_of_archives(path[:2]) == path[:2]


OF_SPARK = "usename = 'pulse_catalog' AND application_name LIKE '%JDBC%'"


def connections() -> int:
    """Those that Spark has to the catalog."""
    with superuser() as connection:
        row = connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {OF_SPARK}").fetchone()
    return int(row[0]) if row else 0


def use_catalog(session: SparkSession) -> None:
    session.sql(f"SHOW NAMESPACES IN {CATALOG}").count()


def test_a_session_whose_connections_were_ended_takes_others(stack: Settings) -> None:
    with spark.session() as session:
        use_catalog(session)
        assert connections()
        with superuser() as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OF_SPARK}")
        use_catalog(session)


@pytest.mark.slow
def test_sessions_that_ended_leave_no_connection_behind(stack: Settings) -> None:
    with spark.session() as lasting:
        use_catalog(lasting)
        for _ in range(3):
            with spark.session() as short:
                use_catalog(short)
        assert connections() >= 4
        wait(lambda: not connections(), "connections of sessions that ended stay")
        use_catalog(lasting)
