"""Peers of pipes: other tools that bring a table of another Postgres into Iceberg, in the same object store.

Spark's JDBC source reads ranges of the key in as many tasks as there are cores, 10,000 rows a round trip, and
appends; brought again, rows are merged by key, and only those that differ are written. dlt reads with its
pyarrow backend; it merges into Iceberg by pyiceberg's upsert alone, 1,000 rows a commit. None captures
changes, keeps versions, or knows what was deleted.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks import cpu
from benchmarks.peers import Peer, streaming, tables
from pulse_resources.iceberg import CATALOG
from pulse_resources.local.downloads import Download, run
from pulse_resources.local.layout import Layout
from pulse_resources.process.niceness import BACKGROUND
from pulse_resources.settings import load_settings

TABLE = "orders"
SOURCE = "source"
"""As what the processor time of the source counts."""
DLT = "1.31.0"
DLT_ROWS = 20_000
"""Rows that dlt merges: at its rate all of them would take too long."""
PARTITIONS = 2
FETCH_ROWS = 10_000
GOAL = 2.0
"""Required ratio of Pulse's full load to Spark's JDBC source."""


@dataclass(frozen=True)
class Spent:
    """What a load took."""

    seconds: float
    processor_seconds: float | None = None

    def peer(self, label: str, rows: int, goal: float | None = None) -> Peer:
        """The measurements as a peer that has loaded so many rows."""
        used = self.processor_seconds
        return Peer(label, rows / self.seconds, goal, None if used is None else used / rows * 1e6)


def _fill(folder: Path, report: Callable[[str], None]) -> None:
    """An environment of its own: its versions of packages are not Pulse's."""
    packages = [f"dlt[filesystem,s3,pyiceberg,sql-database]=={DLT}", "psycopg2-binary"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages],
    ):
        run(command, f"dlt {DLT}", lambda seconds: report(f"{seconds:.0f} s"))


DOWNLOAD = Download(f"dlt-{DLT}", f"dlt {DLT}", _fill)


def measure(console: Console, source: "psycopg.Connection[Any]", rows: int) -> Iterator[tuple[bool, Peer]]:
    """Measure the peers one after the other; yields whether rows were loaded again, and the peer.

    Raises:
        AssertionError: a peer did not bring every row, each once.
    """
    if not DOWNLOAD.present():
        with console.status("fetching dlt"):
            DOWNLOAD.fetch(lambda _: None)
    dsn, server = source.info.dsn, cpu.parent(source.info.backend_pid)
    with console.status("Spark's JDBC source"):
        log = Layout(load_settings().home).log("jdbc")
        with ProcessPoolExecutor(1, get_context("spawn"), _begin, (log,)) as process:
            first, again = process.submit(_jdbc, dsn, server, rows).result()
    yield False, first.peer("Spark: JDBC source, append", rows, GOAL)
    yield True, again.peer("Spark: JDBC source, MERGE of what differs", rows)
    with console.status("dlt"):
        (spent,) = _dlt(dsn, rows, "replace", 1)
        yield False, spent.peer("dlt: replace", rows)
        dlt_rows = min(rows, DLT_ROWS)
        first, again = _dlt(dsn, dlt_rows, "merge", 2)
    yield False, first.peer(f"dlt: merge, of {dlt_rows:,} rows", dlt_rows)
    yield True, again.peer(f"dlt: merge, of {dlt_rows:,} rows", dlt_rows)


def _begin(log: Path) -> None:
    streaming.speak_to(log)
    os.nice(BACKGROUND)  # as Pulse's Spark and runs have it, beside whatever else runs


def _jdbc(dsn: str, server: int, rows: int) -> tuple[Spent, Spent]:
    """A load, and bringing the same rows again."""
    tables.catalog().create_namespace("jdbc")
    with tempfile.TemporaryDirectory(dir=load_settings().home) as folder:
        session = streaming.classic_session(load_settings(), Path(folder))
        _append(session, _read(session, dsn, 10_000), "warm")  # start-up and compilation must not count
        _merge(session, _read(session, dsn, 10_000), "warm")
        spent = []
        for write in (_append, _merge):
            began = time.monotonic()
            with cpu.sampled({"peer": os.getpid(), SOURCE: server}) as used:
                write(session, _read(session, dsn, rows), TABLE)
            seconds = time.monotonic() - began
            spent.append(Spent(seconds, sum(used[process] for process in ("peer", SOURCE, "minio"))))
            count = (
                session.table(f"{CATALOG}.jdbc.{TABLE}").selectExpr("count(*)", "count(DISTINCT id)").first()
            )
            assert count is not None
            assert tuple(count) == (rows, rows), count
        session.stop()
    return spent[0], spent[1]


def _read(session: SparkSession, dsn: str, rows: int) -> DataFrame:
    at = psycopg.conninfo.conninfo_to_dict(dsn)
    options = {
        "url": f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}",
        "user": str(at["user"]),
        "dbtable": TABLE if rows > 10_000 else f"(SELECT * FROM {TABLE} WHERE id <= {rows}) few",
        "driver": "org.postgresql.Driver",
        "fetchsize": str(FETCH_ROWS),
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": str(rows + 1),
        "numPartitions": str(PARTITIONS),
    }
    return session.read.format("jdbc").options(**options).load()


def _append(session: SparkSession, rows: DataFrame, name: str) -> None:
    merge_on_read = {"write.merge.mode": "merge-on-read", "write.distribution-mode": "none"}
    writer = rows.writeTo(f"{CATALOG}.jdbc.{name}").using("iceberg")
    for key, value in merge_on_read.items():
        writer = writer.tableProperty(key, value)
    writer.create()


def _merge(session: SparkSession, rows: DataFrame, name: str) -> None:
    rows.createOrReplaceTempView("brought")
    differs = " OR ".join(f"NOT (t.{column} <=> b.{column})" for column in rows.columns)
    session.sql(
        f"MERGE INTO {CATALOG}.jdbc.{name} t USING brought b ON t.id = b.id "
        f"WHEN MATCHED AND ({differs}) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _dlt(dsn: str, rows: int, disposition: str, times: int) -> list[Spent]:
    """Loads of the same rows, one after the other."""
    at, store = psycopg.conninfo.conninfo_to_dict(dsn), load_settings().object_store
    with tempfile.TemporaryDirectory(dir=load_settings().home) as folder:
        arguments = {
            "source": f"postgresql+psycopg2://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}",
            "folder": folder,
            "bucket": f"{tables.warehouse()}/dlt_{disposition}",
            "endpoint": store.endpoint,
            "access_key": store.access_key,
            "secret_key": store.secret_key.get_secret_value(),
            "region": store.region,
            "table": TABLE,
            "rows": rows,
            "disposition": disposition,
            "times": times,
        }
        program = [str(DOWNLOAD.path / "bin" / "python"), str(Path(__file__).with_name("dlt_load.py"))]
        done = subprocess.run(
            ["nice", "-n", str(BACKGROUND), *program],  # noqa: S607
            input=json.dumps(arguments),
            env={"PATH": os.environ["PATH"], "HOME": folder, "RUNTIME__DLTHUB_TELEMETRY": "false"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [Spent(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]
