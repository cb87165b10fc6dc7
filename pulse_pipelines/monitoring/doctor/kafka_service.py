"""Kafka: its address, what its brokers advertise, the right to create topics, and the topics' settings."""

from collections.abc import Iterator, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import ClusterMetadata, NewTopic

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, first_line, reached
from pulse_resources import kafka
from pulse_resources.settings import Settings

KAFKA = "kafka"
DAY_MS = 86_400_000
SHOWN = 3
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_KAFKA__BOOTSTRAP_SERVERS"
_LOGIN = (
    "Compare PULSE_KAFKA__SECURITY_PROTOCOL, PULSE_KAFKA__SASL_MECHANISM, PULSE_KAFKA__USERNAME and "
    "PULSE_KAFKA__PASSWORD with the broker's listener"
)


def look(settings: Settings) -> Iterator[Finding]:
    """Stops where the broker does not answer, or not to this user."""
    found = [_bootstrap(each) for each in settings.kafka.bootstrap_servers.split(",")]
    yield next((each for each in found if each.ok), found[0])
    if not any(each.ok for each in found):
        return
    try:
        cluster = kafka.admin().list_topics(timeout=PATIENCE_S)
    except KafkaException as error:
        yield Finding(KAFKA, "login", False, first_line(error), _LOGIN)
        return
    protocol = settings.kafka.security_protocol
    yield Finding(
        KAFKA, "login", True, f"{protocol} as {settings.kafka.username}" if "SASL" in protocol else protocol
    )
    yield from _brokers(cluster, settings.kafka.replication_factor)
    yield _may_create(settings.kafka.replication_factor)
    topics = [name for name in cluster.topics if name.startswith("pulse.")]
    wrong = list(_wrong(kafka.topic_settings(topics))) if topics else []
    said = "; ".join(problem for problem, _ in wrong[:SHOWN])
    more = f"; {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    fix = f"kafka-configs --alter --entity-type topics: {', '.join(sorted({fix for _, fix in wrong}))}"
    yield Finding(KAFKA, "topics", not wrong, said + more or f"the settings of all {len(topics)} fit", fix)


def _bootstrap(address: str) -> Finding:
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdigit():
        return Finding(KAFKA, "address", False, f"{address!r} is not host:port", _UP)
    return reached(KAFKA, host.strip("[]"), int(port), _UP)


def _brokers(cluster: ClusterMetadata, factor: int) -> Iterator[Finding]:
    brokers = list(cluster.brokers.values())
    fix = "Correct advertised.listeners of that broker: clients go to the address that it advertises"
    asked = [reached(KAFKA, str(broker.host), broker.port, fix) for broker in brokers]
    away = [each for each in asked if not each.ok]
    names = ", ".join(f"{broker.host}:{broker.port}" for broker in brokers)
    found = away[0].found if away else f"{names} can be reached"
    yield Finding(KAFKA, "advertised addresses", not away, found, fix)
    fix = f"Set PULSE_KAFKA__REPLICATION_FACTOR to at most {len(brokers)}, or add brokers"
    yield Finding(KAFKA, "replication", factor <= len(brokers), f"{factor} of {len(brokers)} brokers", fix)


def _may_create(factor: int) -> Finding:
    """Asked with a request that is only checked: no topic comes of it."""
    topic = NewTopic("pulse.doctor", num_partitions=1, replication_factor=factor)
    try:
        kafka.admin().create_topics([topic], validate_only=True, request_timeout=PATIENCE_S)[
            topic.topic
        ].result()
    except KafkaException as error:
        fix = "Grant the user CREATE, DESCRIBE, ALTER, READ and WRITE on topics that begin with pulse."
        return Finding(KAFKA, "rights", False, first_line(error), fix)
    return Finding(KAFKA, "rights", True, "topics may be created")


def _wrong(topics: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """What is wrong with topics, each with the setting that it should have."""
    for name, settings in topics.items():
        if "compact" in settings.get("cleanup.policy", ""):
            yield f"{name} is compacted: events with one key replace each other", "cleanup.policy=delete"
        if settings.get("message.timestamp.type") != "LogAppendTime":
            yield f"{name} keeps its producers' clocks", "message.timestamp.type=LogAppendTime"
        if int(settings.get("max.message.bytes", 0)) < kafka.MAX_MESSAGE_BYTES:
            yield f"{name} takes no dead letter of full size", f"max.message.bytes={kafka.MAX_MESSAGE_BYTES}"
        if 0 <= int(settings.get("retention.ms", -1)) < DAY_MS:
            yield f"{name} forgets events within a day, ingested or not", "retention.ms=604800000"
