"""Spark Structured Streaming into Iceberg, the usual design, plain and with MERGE.

The plain job decodes with a fixed schema and appends. With `merge` it also drops events that the JSON Schema
rejects, as far as SQL can tell (a number where text belongs has become text), and an event lands only when
its id is not in the table. It keeps no raw zone and no dead letters.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from benchmarks import load
from benchmarks.peers import tables
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import spark_catalog
from pulse_resources.iceberg import CATALOG
from pulse_resources.local import spark
from pulse_resources.local.downloads import Jar, jars
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings, load_settings

KAFKA_SOURCE = "4.1.3"
"""Minor version of pyspark: not every patch release is on Maven."""
DOWNLOAD = jars(
    f"spark-jars-kafka-{KAFKA_SOURCE}",
    f"Kafka source {KAFKA_SOURCE} for Spark",
    Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", KAFKA_SOURCE, alone=True),
    # Used only to look for delegation tokens, which do not exist here; mirrors lack later versions.
    Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1", alone=True),
    Jar("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Jar("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)
SCHEMA = """event_id STRING, timestamp TIMESTAMP, data STRUCT<
    country: STRING, amount: DOUBLE, active: BOOLEAN, signup_at: TIMESTAMP, plan: STRING, seats: BIGINT>"""
ENVELOPE = ("event_id", "timestamp")
VALID = f"""event_id IS NOT NULL AND timestamp IS NOT NULL
    AND char_length(country) = 2 AND amount >= 0 AND active IS NOT NULL
    AND (plan IS NULL OR plan IN {load.PLANS})"""
"""`load.SCHEMA` in SQL; NULL is not true, so required fields are present."""
WRITERS = 4
"""Tenants written concurrently: the commit of one overlaps with the writing of another."""

FILLED = {
    "event_id": "uuid()",
    "timestamp": "timestamp_micros(unix_micros(now()) - CAST(id * (30 * 86400e6 / {rows}) AS BIGINT))",
    "country": "'DE'",
    "amount": "id * 0.25D",
    "active": "id % 3 = 0",
    "signup_at": "now()",
    "plan": "'team'",
    "seats": "id % 500",
}
"""Rows of 30 days, ordered by timestamp; `id` counts them."""

Write = Callable[[DataFrame, str], None]
"""Writes one tenant's rows to its table."""


def fetch() -> None:
    if not DOWNLOAD.present():
        DOWNLOAD.fetch(lambda _: None)


def run(peer: str, tenants: list[Tenant], warm: Tenant, events: int, *, merge: bool) -> float:
    """Stream every topic to its end into a table each; returns events per second.

    Spark runs in a process of its own with a classic session; its output goes to a file in the stack's logs.

    Args:
        warm: tenant whose topic is streamed first, so that start-up and compilation do not count.
        merge: validate, and land only ids that are not in the table.

    Raises:
        AssertionError: not every event is in a table, exactly once.
    """
    log = Layout(load_settings().home).log(peer)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=speak_to, initargs=(log,)) as process:
        seconds = process.submit(_measure, peer, tenants, warm, merge).result()
    tables.prove(peer, tenants, events)
    return events / seconds


def merge_into_full(peer: str, tenant: Tenant, warm: Tenant, rows: int, events: int) -> float:
    """Seconds of MERGE for the tenant's topic into a table with `rows` rows of the last 30 days.

    The row that a copy would match is unknown, so all rows are searched for an id.

    Raises:
        AssertionError: not every event is in the table.
    """
    log = Layout(load_settings().home).log(peer)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=speak_to, initargs=(log,)) as process:
        seconds = process.submit(_measure_full, peer, tenant, warm, rows).result()
    count = tables.count(peer, tenant)
    assert count == rows + events, f"{peer}: {rows} rows and {events} events, {count} rows afterwards"
    return seconds


def _measure_full(peer: str, tenant: Tenant, warm: Tenant, rows: int) -> float:
    tables.make(f"{peer}_warm", [warm])
    tables.make(peer, [tenant])
    with tempfile.TemporaryDirectory(dir=load_settings().home) as folder:
        session = classic_session(load_settings(), Path(folder))
        target = ".".join((CATALOG, *tables.name(peer, tenant)))
        columns = (f"{value.format(rows=rows)} AS {name}" for name, value in FILLED.items())
        session.range(0, rows, numPartitions=60).selectExpr(*columns).writeTo(target).append()
        _stream(session, f"{peer}_warm", [warm], _merge, f"{folder}/warm")
        began = time.monotonic()
        _stream(session, peer, [tenant], _merge, f"{folder}/measured")
        seconds = time.monotonic() - began
        session.stop()
    return seconds


def speak_to(log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _measure(peer: str, tenants: list[Tenant], warm: Tenant, merge: bool) -> float:
    """Seconds from the start of the query until the last event has landed."""
    tables.make(f"{peer}_warm", [warm])
    tables.make(peer, tenants)
    write = _merge if merge else _append
    with tempfile.TemporaryDirectory(dir=load_settings().home) as folder:
        session = classic_session(load_settings(), Path(folder))
        _stream(session, f"{peer}_warm", [warm], write, f"{folder}/warm")
        began = time.monotonic()
        _stream(session, peer, tenants, write, f"{folder}/measured")
        seconds = time.monotonic() - began
        session.stop()
    return seconds


def classic_session(settings: Settings, folder: Path) -> SparkSession:
    prefix = f"spark.sql.catalog.{CATALOG}"
    postgres = settings.postgres
    uri = f"jdbc:postgresql://{postgres.host}:{postgres.port}/{postgres.database}"
    catalog = spark_catalog.catalog(settings) | {
        f"{prefix}.uri": f"{uri}?currentSchema={tables.POSTGRES_SCHEMA}",
        f"{prefix}.jdbc.user": tables.ROLE,
        f"{prefix}.jdbc.password": postgres.role_passwords[tables.ROLE].get_secret_value(),
        f"{prefix}.warehouse": tables.warehouse(),
        f"{prefix}.cache-enabled": "true",  # no other writer commits to these tables
    }
    engine = {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": f"{spark.DOWNLOAD.path}/*:{DOWNLOAD.path}/*",
        "spark.local.dir": f"{folder}/local",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": spark_catalog.EXTENSIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"file:{folder}/warehouse",
    }
    session = SparkSession.builder.master("local[2]").config(map=engine).getOrCreate()
    # Only now: the builder's settings are on a command line, which shows secrets to every user.
    for key, value in catalog.items():
        session.conf.set(key, value)
    return session


def _stream(session: SparkSession, peer: str, tenants: list[Tenant], write: Write, checkpoint: str) -> None:
    settings = load_settings()
    targets = {tenant.topic: ".".join((CATALOG, *tables.name(peer, tenant))) for tenant in tenants}

    def land(batch: DataFrame, _: int) -> None:
        batch.persist()  # otherwise every tenant would read and decode all of it
        with ThreadPoolExecutor(WRITERS) as writers:
            list(
                writers.map(
                    lambda target: write(batch.where(F.col("topic") == target[0]).drop("topic"), target[1]),
                    targets.items(),
                )
            )
        batch.unpersist()

    scram = settings.kafka.sasl_mechanism.startswith("SCRAM")
    module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
    source = session.readStream.format("kafka").options(
        **{
            "kafka.bootstrap.servers": settings.kafka.bootstrap_servers,
            "kafka.security.protocol": settings.kafka.security_protocol,
            "kafka.sasl.mechanism": settings.kafka.sasl_mechanism,
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f'username="{settings.kafka.username}" password="{settings.kafka.password.get_secret_value()}";',
            "subscribe": ",".join(targets),
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(settings.ingest.batch_max_rows),
            # Otherwise every task waits half a second at the end of its partition.
            "kafka.fetch.max.wait.ms": "10",
        }
    )
    event = F.from_json(F.col("value").cast("string"), SCHEMA).alias("event")
    columns = (f"event.{name}" if name in ENVELOPE else f"event.data.{name}" for name in tables.FIELDS)
    rows = source.load().select("topic", event).select("topic", *columns)
    stream = rows.writeStream.foreachBatch(land).option("checkpointLocation", checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


def _append(rows: DataFrame, table: str) -> None:
    rows.writeTo(table).append()


def _merge(rows: DataFrame, table: str) -> None:
    fresh = rows.where(VALID).dropDuplicates(["event_id"]).alias("fresh")
    same = F.expr(f"fresh.event_id = {table}.event_id")
    fresh.mergeInto(table, same).whenNotMatched().insertAll().merge()
