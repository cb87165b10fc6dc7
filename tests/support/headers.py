"""Messages whose header has any bytes as its name: confluent-kafka cannot write them, librdkafka can."""

import ctypes
from pathlib import Path

import confluent_kafka

from pulse_resources.settings import load_settings
from support.ingest import Owner

_PRODUCER, _TIMEOUT_MS = 0, 30_000
_END, _TOPIC, _PARTITION, _VALUE, _HEADER = 0, 1, 3, 4, 9  # rd_kafka_vtype_t


def send_named(owner: Owner, *named: tuple[bytes, bytes]) -> None:
    """Send events, each with the name of its header, to partition 0, and wait for the broker."""
    (path,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    message = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    for key, value in load_settings().kafka.client().items():
        text = str(value).encode()
        assert library.rd_kafka_conf_set(conf, key.encode(), text, message, 512) == 0, message.value
    client = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, message, 512))
    assert client, message.value
    size = ctypes.c_size_t
    for payload, name in named:
        failed = library.rd_kafka_producev(
            client,
            *(_TOPIC, owner.tenant.topic.encode()),
            *(_PARTITION, ctypes.c_int32(0)),
            *(_VALUE, payload, size(len(payload))),
            *(_HEADER, name, b"1", ctypes.c_ssize_t(1)),
            _END,
        )
        assert failed == 0
    assert library.rd_kafka_flush(client, _TIMEOUT_MS) == 0
    library.rd_kafka_destroy(client)
