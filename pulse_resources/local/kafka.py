"""Kafka broker: one KRaft node that is broker and controller."""

import base64
import uuid
from pathlib import Path

from pulse_resources.errors import Terminal
from pulse_resources.home import write_atomically
from pulse_resources.local import accounts, tls
from pulse_resources.local.accounts import Account
from pulse_resources.local.downloads import Jar, jars
from pulse_resources.local.layout import Layout
from pulse_resources.local.prerequisites import java
from pulse_resources.local.provision import local_port
from pulse_resources.local.service import Service, listens
from pulse_resources.process.niceness import FOREGROUND
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import KafkaSettings

VERSION = "4.1.1"

DOWNLOAD = jars(
    f"kafka-{VERSION}",
    f"Kafka {VERSION}",
    Jar("org.apache.kafka", "kafka_2.13", VERSION),
    # Kafka logs through slf4j, whose backend only its own tarball brings.
    Jar("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
)

# The controller's listener does not support SCRAM: the broker talks only to itself over it.
_PLAIN_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="{user}" password="{password}" user_{user}="{password}";'
)
# Another program that takes the port while the broker is down must not learn the password from clients.
_SCRAM_LOGIN = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="{user}" password="{password}";'
)
_CREDENTIAL = "name={user},password={password}"
# Small index files: each partition of each tenant preallocates two per segment. An idle controller writes a
# record of its own twice a second by default.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=INSIDE://{address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=INSIDE://{address}
controller.listener.names=CONTROLLER
inter.broker.listener.name=INSIDE
listener.security.protocol.map=INSIDE:{protocol},CONTROLLER:SASL_PLAINTEXT
sasl.mechanism.inter.broker.protocol={mechanism}
sasl.mechanism.controller.protocol=PLAIN
listener.name.inside.sasl.enabled.mechanisms={mechanism}
listener.name.inside.{prefix}.sasl.jaas.config={login}
listener.name.controller.sasl.enabled.mechanisms=PLAIN
listener.name.controller.plain.sasl.jaas.config={controller_login}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{user}
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
metadata.max.idle.interval.ms=10000
"""
_TLS = """\
listener.name.inside.ssl.keystore.type=PEM
listener.name.inside.ssl.keystore.location={identity}
listener.name.inside.ssl.truststore.type=PEM
listener.name.inside.ssl.truststore.location={authority}
listener.name.inside.ssl.client.auth=required
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
    owner = accounts.account(layout, "kafka")
    folder = accounts.folder(layout, "kafka", owner)
    programs = accounts.reachable(owner, DOWNLOAD.path, folder)
    base = (
        java(),
        "-Xms64m",
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:ReservedCodeCacheSize=64m",
        # With the second compiler a message costs the broker no less (benchmarks/README.md).
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        "-cp",
        f"{programs}/*",
    )
    properties = str(folder / "server.properties")
    return Service(
        name="kafka",
        address=address,
        command=(*base, "kafka.Kafka", properties),
        env={"MALLOC_ARENA_MAX": "2"},
        setup=lambda: _setup(layout, folder, settings.kafka, base, owner),
        account=owner,
        niceness=FOREGROUND,  # collect waits for it
        ready=listens(address),
        prepare=True,
        stop_timeout=30,
    )


def external(settings: Settings) -> Service:
    first = settings.kafka.bootstrap_servers.split(",")[0]
    address = settings.kafka.bootstrap_servers
    return Service("kafka", address, listens(first), prepare=True, external=True)


def _setup(
    layout: Layout, folder: Path, kafka: KafkaSettings, base: tuple[str, ...], owner: Account | None
) -> None:
    data, properties = folder / "data", folder / "server.properties"
    logging, credentials = folder / "log4j2.properties", folder / "credentials"
    about = {"user": kafka.username, "password": kafka.password.get_secret_value()}
    certificates = tls.certificates(layout, "kafka")
    plain, scram = _PLAIN_LOGIN.format(**about), _SCRAM_LOGIN.format(**about)
    configuration = _PROPERTIES.format(
        address=kafka.bootstrap_servers,
        controller=local_port(layout, "kafka_controller"),
        data=data,
        user=kafka.username,
        mechanism=kafka.sasl_mechanism,
        prefix=kafka.sasl_mechanism.lower(),
        login=plain if kafka.sasl_mechanism == "PLAIN" else scram,
        controller_login=plain,
        protocol="SASL_SSL" if certificates else "SASL_PLAINTEXT",
    )
    if certificates:
        identity, authority = folder / "tls.pem", folder / "ca.pem"
        certificates.copy(owner, both=identity, authority=authority)
        configuration += _TLS.format(identity=identity, authority=authority)
    for path, text in ((logging, _LOGGING), (properties, configuration)):
        write_atomically(path, text)
        accounts.give(owner, path)
    if (data / "meta.properties").exists():
        return
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    arguments = ["format", f"--cluster-id={cluster}", "--config", str(properties)]  # the id may begin with -
    if kafka.sasl_mechanism != "PLAIN":  # by file, since command lines are visible to all users
        write_atomically(
            credentials, f"--add-scram\n{kafka.sasl_mechanism}=[{_CREDENTIAL.format(**about)}]\n"
        )
        accounts.give(owner, credentials)
        arguments.append(f"@{credentials}")
    try:
        result = accounts.run(owner, *base, "kafka.tools.StorageTool", *arguments, "--ignore-formatted")
    finally:
        credentials.unlink(missing_ok=True)
    if result.returncode:
        raise Terminal(f"Formatting Kafka's storage failed: {result.stdout + result.stderr}")
