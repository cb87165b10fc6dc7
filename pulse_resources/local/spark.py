"""Spark Connect server from the pyspark wheel, started once, so that jobs start quickly.

`python -m pulse_resources.local.spark` runs one in the foreground, for a container.
"""

import os
import shutil
import sys
from pathlib import Path

from pulse_resources import spark_catalog, spark_code
from pulse_resources.errors import UserError
from pulse_resources.home import write_atomically
from pulse_resources.local import java_tls
from pulse_resources.local.downloads import Jar, jars, spark_home
from pulse_resources.local.layout import PRIVATE, Layout
from pulse_resources.local.prerequisites import java
from pulse_resources.local.service import Service, environment, listens
from pulse_resources.process.niceness import BACKGROUND
from pulse_resources.settings import Settings, load_settings
from pulse_resources.spark_packages import AWS_BUNDLE, ICEBERG, RUNTIME

POSTGRES_DRIVER = "42.7.8"

DOWNLOAD = jars(
    f"spark-jars-iceberg-{ICEBERG}-pg-{POSTGRES_DRIVER}",
    f"Iceberg {ICEBERG} for Spark",
    Jar("org.apache.iceberg", RUNTIME, ICEBERG, alone=True),
    Jar("org.apache.iceberg", AWS_BUNDLE, ICEBERG, alone=True),
    Jar("org.postgresql", "postgresql", POSTGRES_DRIVER, alone=True),
)

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_OVERLAP = 2
"""Batches that find a slot for each of their tasks at once, for example a large and a small one. The kernel
divides the cores among them better than a queue in which a large batch's tasks come first."""
_LEAST_SLOTS = 3
"""Two runs of pipes, whose sources may be slow on purpose, hold one each, and a batch has one."""
# The second compiler takes only what runs ten times longer than usual: the JVM's processor time of 2,000,000
# events falls by a fifth (benchmarks/README.md), and data work is done by Python workers.
_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Jobs share the slots equally instead of the first taking all: a batch that arrives while upkeep rewrites a
# day gets the next free slot. (A client cannot choose a pool through Spark Connect.)
_SCHEDULING = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
  </pool>
</allocations>
"""
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex{12}
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.connect.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level = info
# These say at every start what is known: no native Hadoop library, a loopback address, our folder.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""


def service(layout: Layout, settings: Settings) -> Service:
    host, port = settings.spark.address
    folder = layout.folder("spark")
    home = spark_home()
    properties = folder / "spark.properties"
    return Service(
        name="spark",
        address=settings.spark.place,
        command=(
            str(home / "bin" / "spark-submit"),
            "--properties-file",
            str(properties),
            "--class",
            _SERVER,
            "spark-internal",
        ),
        env={
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(Path(java()).resolve().parent.parent),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "MALLOC_ARENA_MAX": "2",
        },
        setup=lambda: _setup(folder, properties, settings),
        niceness=BACKGROUND,
        ready=listens(f"{host}:{port}"),
        start_timeout=240,  # its processes give way to all others: on a busy machine they take minutes
        stop_timeout=20,
    )


def external(settings: Settings) -> Service:
    host, port = settings.spark.address
    return Service("spark", settings.spark.place, listens(f"{host}:{port}"), external=True, prepare=True)


def _setup(folder: Path, properties: Path, settings: Settings, host: str = "127.0.0.1") -> None:
    for name in ("local", "tmp"):  # left by a server that was killed
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("local", "tmp", "warehouse"):
        (folder / name).mkdir(mode=PRIVATE, exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOGGING)
    (folder / "scheduling.xml").write_text(_SCHEDULING)
    java_tls.prepare(folder, settings)
    configuration = _engine(folder, settings, host) | spark_catalog.SESSION
    configuration |= spark_catalog.catalog(settings, java_tls.jdbc(folder, settings.postgres))
    # A file that only its owner can read: command lines are visible to all users.
    lines = (f"{key} {_escaped(value)}\n" for key, value in configuration.items())
    write_atomically(properties, "".join(lines))


def _escaped(value: str) -> str:
    """Escape a value of a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _engine(folder: Path, settings: Settings, host: str) -> dict[str, str]:
    port, token = str(settings.spark.address[1]), settings.spark.bearer
    if token is None:
        raise UserError(
            "anyone could use the Spark server",
            fix="Set PULSE_SPARK__TOKEN, here and where Pulse runs",
        )
    java_options = (
        f"-Xms128m -XX:MetaspaceSize=200m -XX:+UseSerialGC -XX:ReservedCodeCacheSize=160m "
        f"-XX:MaxDirectMemorySize=512m {_COMPILER} "
        f"-Djava.io.tmpdir={folder / 'tmp'} -Duser.timezone=UTC "
        f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}{java_tls.options(folder, settings)}"
    )
    return {
        "spark.app.name": "pulse",
        "spark.master": f"local[{max(_OVERLAP * settings.spark.parallelism, _LEAST_SLOTS)}]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.extraClassPath": f"{DOWNLOAD.path}/*",
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": port,
        "spark.connect.authenticate.token": token,
        # All runs share one session (see provision): ending one run must not close it for the others.
        spark_catalog.TOMBSTONES: "0",
        # A killed run leaves its statements running: end them once no client waits for them.
        "spark.connect.execute.manager.detachedTimeout": "60s",
        "spark.local.dir": str(folder / "local"),
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": f"file:{folder / 'scheduling.xml'}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "pulse_pipelines.runtime.spark_daemon",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": spark_catalog.EXTENSIONS,
        spark_catalog.OURS: spark_code.digest(),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": f"file:{folder / 'warehouse'}",
    }


def main() -> None:
    """Become the server, reachable from other hosts: in a container the network restricts access."""
    settings = load_settings()
    layout = Layout(settings.home)
    layout.make()
    server = service(layout, settings)
    folder = layout.folder("spark")
    _setup(folder, folder / "spark.properties", settings, host="0.0.0.0")  # noqa: S104
    os.execvpe(server.command[0], server.command, environment(layout, server))  # noqa: S606


if __name__ == "__main__":
    main()
