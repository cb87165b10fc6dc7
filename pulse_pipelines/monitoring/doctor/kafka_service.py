"""Kafka: address, brokers' advertised addresses, permission to create topics, and settings of topics."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ClusterMetadata, NewTopic

from pulse_pipelines.monitoring.doctor.finding import PATIENCE_S, Finding, reached
from pulse_pipelines.monitoring.doctor.transport import Tls, offered
from pulse_resources import kafka
from pulse_resources.errors import first_line
from pulse_resources.settings import Settings
from pulse_resources.settings.service_settings import KafkaSettings

KAFKA = "kafka"
_GLANCE_S = 0.5
_REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Errors that waiting does not resolve."""
DAY_MS = 86_400_000
SHOWN = 3
MAX_TOPICS = 100
"""Topics of which rights are asked."""
NEEDED = (
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER,
    AclOperation.READ,
    AclOperation.WRITE,
)
"""What Pulse does with topics, and `pulse doctor` with their settings."""
_UP = "Start it (`pulse up` starts the embedded one), or correct PULSE_KAFKA__BOOTSTRAP_SERVERS"
_LOGIN = (
    "Compare PULSE_KAFKA__SECURITY_PROTOCOL, PULSE_KAFKA__SASL_MECHANISM, PULSE_KAFKA__USERNAME and "
    "PULSE_KAFKA__PASSWORD with the broker's listener"
)
_CERTIFICATE = (
    "Set PULSE_KAFKA__CERTIFICATE_FILE and PULSE_KAFKA__KEY_FILE to a certificate that an authority of the "
    "brokers signed, and its key"
)
_SASL = (
    "If brokers ask for a password, set PULSE_KAFKA__SECURITY_PROTOCOL to SASL_SSL (without TLS, "
    "SASL_PLAINTEXT), and PULSE_KAFKA__SASL_MECHANISM, PULSE_KAFKA__USERNAME and PULSE_KAFKA__PASSWORD"
)
_OTHER = "Name a listener for clients in PULSE_KAFKA__BOOTSTRAP_SERVERS: another service may have that port"
_ENCRYPT = (
    "Set PULSE_KAFKA__SECURITY_PROTOCOL to SASL_SSL (SSL where brokers ask for no password), and "
    "PULSE_KAFKA__CA_FILE to the authority of their certificates"
)


def check_kafka(settings: Settings) -> Iterator[Finding]:
    """Check Kafka; stops if the broker does not answer, or refuses this user."""
    checked = [(server, _bootstrap(server)) for server in settings.kafka.bootstrap_servers.split(",")]
    address, at = next((pair for pair in checked if pair[1].ok), checked[0])
    yield at
    if not at.ok:
        return
    host, port = _parts(address)
    tls = _tls(settings.kafka) if settings.kafka.encrypted else None
    if tls:
        tls_findings = tls.check(host, port)
        yield from tls_findings
        if not tls_findings[0].ok:
            return
    try:
        cluster = describe_cluster(PATIENCE_S)
    except KafkaException as error:
        spoken = None if tls else offered(KAFKA, host, port, _ENCRYPT)
        yield spoken or Finding(KAFKA, "login", False, *_refusal(error, address.strip(), settings.kafka))
        return
    protocol = settings.kafka.security_protocol
    yield Finding(
        KAFKA, "login", True, f"{protocol} as {settings.kafka.username}" if "SASL" in protocol else protocol
    )
    yield from _brokers(cluster, settings.kafka.replication_factor, tls)
    topics = [name for name in cluster.topics if name.startswith("pulse.")]
    rights = _rights(settings.kafka, topics)
    yield rights
    if not rights.ok:
        return
    wrong = list(_wrong(kafka.topic_settings(topics))) if topics else []
    problems = "; ".join(problem for problem, _ in wrong[:SHOWN])
    more = f"; {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    fix = f"kafka-configs --alter --entity-type topics: {', '.join(sorted({fix for _, fix in wrong}))}"
    yield Finding(
        service=KAFKA,
        check="topics",
        ok=not wrong,
        found=problems + more or f"the settings of all {len(topics)} fit",
        fix=fix,
    )


def _tls(kafka: KafkaSettings) -> Tls:
    return Tls(
        service=KAFKA,
        proof="name",
        authorities=kafka.ca_file,
        authorities_setting="PULSE_KAFKA__CA_FILE",
        address_setting="PULSE_KAFKA__BOOTSTRAP_SERVERS",
        plain_fix=f"Set PULSE_KAFKA__SECURITY_PROTOCOL to {'SASL_PLAINTEXT' if kafka.sasl else 'PLAINTEXT'}, "
        "or name the broker's listener that speaks TLS",
        certificate=kafka.certificate_file,
        key=kafka.key_file,
        key_password=kafka.key_password.get_secret_value() if kafka.key_password else None,
        certificate_settings="PULSE_KAFKA__CERTIFICATE_FILE and PULSE_KAFKA__KEY_FILE",
    )


def _refusal(error: KafkaException, address: str, kafka: KafkaSettings) -> tuple[str, str]:
    """What a broker, or the client itself, says against a sign-in, and what to do."""
    message, code = first_line(error), error.args[0].code()
    if kafka.sasl and not kafka.password.get_secret_value():
        return message, "Set PULSE_KAFKA__USERNAME and PULSE_KAFKA__PASSWORD"
    if "mechanism" in message and "supported" in message.lower():  # librdkafka quotes what the broker has
        return message, "Set PULSE_KAFKA__SASL_MECHANISM to one that the broker supports"
    if code == KafkaError._AUTHENTICATION:
        return (
            message,
            "Correct PULSE_KAFKA__USERNAME and PULSE_KAFKA__PASSWORD: the broker does not know them",
        )
    if re.search("certificate|unknown ca|alert", message):
        return message, _CERTIFICATE
    if "brokers are down" in message:
        return f"{address} ends connections without an answer", _OTHER if kafka.sasl else f"{_SASL}. {_OTHER}"
    return message, _LOGIN


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.strip().rpartition(":")
    return host.strip("[]"), int(port)


def _bootstrap(address: str) -> Finding:
    host, _, port = address.strip().rpartition(":")
    if not host or "/" in host or not port.isdigit():
        fix = "Write PULSE_KAFKA__BOOTSTRAP_SERVERS as host:port, more than one with commas"
        return Finding(
            service=KAFKA, check="address", ok=False, found=f"{address!r} is not host:port", fix=fix
        )
    return reached(KAFKA, *_parts(address), _UP)


def _brokers(cluster: ClusterMetadata, factor: int, tls: Tls | None) -> Iterator[Finding]:
    brokers = list(cluster.brokers.values())
    fix = "Correct advertised.listeners of that broker: clients go to the address that it advertises"
    findings = [
        tls.check(str(broker.host), broker.port)[0]
        if tls
        else reached(KAFKA, str(broker.host), broker.port, fix)
        for broker in brokers
    ]
    away = [finding for finding in findings if not finding.ok]
    names = ", ".join(f"{broker.host}:{broker.port}" for broker in brokers)
    result = away[0].found if away else f"{names} can be reached"
    yield Finding(service=KAFKA, check="advertised addresses", ok=not away, found=result, fix=fix)
    fix = f"Set PULSE_KAFKA__REPLICATION_FACTOR to at most {len(brokers)}, or add brokers"
    yield Finding(
        service=KAFKA,
        check="replication",
        ok=factor <= len(brokers),
        found=f"{factor} of {len(brokers)} brokers",
        fix=fix,
    )


def _rights(kafka_settings: KafkaSettings, topics: Sequence[str]) -> Finding:
    """Check with a request that only validates, and on the topics that there are."""
    user = kafka_settings.username if kafka_settings.sasl else "…"
    options = " ".join(f"--operation {operation.name.title().replace('_', '')}" for operation in NEEDED)
    fix = (
        f"kafka-acls --add --allow-principal User:{user} {options} --topic pulse. "
        "--resource-pattern-type prefixed"
    )
    topic = NewTopic("pulse.doctor", num_partitions=1, replication_factor=kafka_settings.replication_factor)
    created = kafka.admin().create_topics([topic], validate_only=True, request_timeout=PATIENCE_S)
    try:
        created[topic.topic].result()
    except KafkaException as error:
        return Finding(
            service=KAFKA,
            check="rights",
            ok=False,
            found=f"no topic may be created: {first_line(error)}",
            fix=fix,
        )
    for name, lacking in _lacking(topics[:MAX_TOPICS]):
        rights = f"{', '.join(operation.name for operation in lacking)} on {name}"
        return Finding(service=KAFKA, check="rights", ok=False, found=f"the user lacks {rights}", fix=fix)
    return Finding(KAFKA, "rights", True, "topics may be created, written and read")


def _lacking(topics: Sequence[str]) -> Iterator[tuple[str, list[AclOperation]]]:
    """Topics on which the user may not do all that Pulse does; brokers may keep to themselves what it may."""
    if not topics:
        return
    answers = kafka.admin().describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=PATIENCE_S
    )
    for name, answer in answers.items():
        allowed = answer.result().authorized_operations
        if allowed is not None and (
            lacking := [operation for operation in NEEDED if operation not in allowed]
        ):
            yield name, lacking


def _wrong(topics: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Wrong settings of topics, each with the value that is required."""
    for name, settings in topics.items():
        if "compact" in settings.get("cleanup.policy", ""):
            yield f"{name} is compacted: events with one key replace each other", "cleanup.policy=delete"
        if settings.get("message.timestamp.type") != "LogAppendTime":
            yield f"{name} keeps its producers' clocks", "message.timestamp.type=LogAppendTime"
        if int(settings.get("max.message.bytes", 0)) < kafka.MAX_MESSAGE_BYTES:
            yield f"{name} takes no dead letter of full size", f"max.message.bytes={kafka.MAX_MESSAGE_BYTES}"
        if 0 <= int(settings.get("retention.ms", -1)) < DAY_MS:
            yield f"{name} forgets events within a day, ingested or not", "retention.ms=604800000"


def describe_cluster(timeout: float) -> ClusterMetadata:
    """Brokers and topics, through a new client that records why a connection failed.

    Raises:
        KafkaException: the broker's or TLS's error; a time-out if there was none.
    """
    reasons: list[KafkaError] = []
    client = AdminClient(kafka.client_settings() | {"error_cb": reasons.append})
    deadline = time.monotonic() + timeout
    while True:
        try:
            return client.list_topics(timeout=min(timeout, _GLANCE_S))
        except KafkaException as error:
            client.poll(0)
            if final := [reason for reason in reasons if reason.code() in _REFUSALS]:
                raise KafkaException(final[0]) from error
            if time.monotonic() > deadline:
                raise (KafkaException(reasons[0]) if reasons else error) from None
