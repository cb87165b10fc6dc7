"""A real Kafka broker: one KRaft node that is broker and controller."""

import base64
import subprocess
import uuid
from pathlib import Path

from pulse_resources.errors import Terminal
from pulse_resources.local.downloads import Jar, jars
from pulse_resources.local.layout import Layout
from pulse_resources.local.prerequisites import java
from pulse_resources.local.provision import local_port
from pulse_resources.local.service import Service, listens
from pulse_resources.settings import Settings

VERSION = "4.1.1"

DOWNLOAD = jars(
    f"kafka-{VERSION}",
    f"Kafka {VERSION}",
    Jar("org.apache.kafka", "kafka_2.13", VERSION),
    # Kafka logs through slf4j and leaves the choice of a backend to its own tarball.
    Jar("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
)

# Small index files: each partition of each tenant preallocates two per segment.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
log.message.timestamp.type=LogAppendTime
message.max.bytes=2097152
replica.fetch.max.bytes=2097152
log.segment.bytes=268435456
log.index.size.max.bytes=1048576
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""


def service(layout: Layout, settings: Settings) -> Service:
    address = settings.kafka.bootstrap_servers
    folder = layout.folder("kafka")
    base = (
        *(java(), "-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=64m"),
        *("-XX:+ExitOnOutOfMemoryError", "-Djava.awt.headless=true"),
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        *("-cp", f"{DOWNLOAD.path}/*"),
    )
    properties = str(folder / "server.properties")
    return Service(
        name="kafka",
        address=address,
        command=(*base, "kafka.Kafka", properties),
        env={"MALLOC_ARENA_MAX": "2"},
        setup=lambda: _setup(layout, folder, address, base),
        ready=listens(address),
        prepare=True,
        stop_timeout=30,
    )


def external(settings: Settings) -> Service:
    first = settings.kafka.bootstrap_servers.split(",")[0]
    address = settings.kafka.bootstrap_servers
    return Service("kafka", address, listens(first), prepare=True, external=True)


def _setup(layout: Layout, folder: Path, address: str, base: tuple[str, ...]) -> None:
    data = folder / "data"
    controller = local_port(layout, "kafka_controller")
    (folder / "log4j2.properties").write_text(_LOGGING)
    properties = folder / "server.properties"
    properties.write_text(_PROPERTIES.format(address=address, controller=controller, data=data))
    if not (data / "meta.properties").exists():
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ("format", f"--cluster-id={cluster}", "--config", str(properties))  # it may begin with -
        command = (*base, "kafka.tools.StorageTool", *arguments, "--ignore-formatted")
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise Terminal(f"Formatting Kafka's storage failed: {result.stdout + result.stderr}")
