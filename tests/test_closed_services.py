"""Services of the embedded stack ask who comes: another user of the machine reaches every port of it."""

import atexit
import json
import stat
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import SparkConnectClient

from pulse_resources import kafka, spark
from pulse_resources.local import provision
from pulse_resources.local.layout import Layout
from pulse_resources.service_settings import KafkaSettings, SparkSettings
from pulse_resources.settings import Settings, load_settings


@pytest.mark.parametrize(
    "stranger",
    [
        {"security.protocol": "PLAINTEXT"},
        {"sasl.password": "wrong"},
        {"sasl.username": "guest"},
        {"sasl.mechanism": "SCRAM-SHA-512"},
    ],
)
def test_kafka_lists_nothing_to_a_stranger(stack: Settings, stranger: dict[str, str]) -> None:
    errors: list[KafkaError] = []
    quiet = {"log_level": 0, "error_cb": errors.append}
    with pytest.raises(KafkaException):
        AdminClient(stack.kafka.client() | quiet | stranger).list_topics(timeout=1.5)
    assert kafka.admin().list_topics(timeout=20).brokers


def test_spark_runs_nothing_for_a_stranger(stack: Settings) -> None:
    place = stack.spark.place
    for remote in (place, f"{place}/;authorization=Bearer%20wrong", f"{place}/;authorization=Bearer%20"):
        client = SparkConnectClient(remote)  # a session would become that of this process
        atexit.unregister(client._cleanup_ml_cache)
        with pytest.raises(PySparkException, match=r"(?i)authenticat|authorization"):
            client._analyze("spark_version")
        client.close()
    with spark.session() as session:
        assert session.sql("SELECT 1 AS one").toArrow().to_pylist() == [{"one": 1}]
        assert str(stack.spark.token) not in str(session.conf.getAll)


def test_secrets_are_in_no_file_of_which_others_could_read(stack: Settings) -> None:
    secrets = json.loads((stack.home / "settings.json").read_text())["local"]["secrets"].values()
    kept = [path for path in stack.home.rglob("*") if path.is_file() and path.stat().st_size < 1_000_000]
    holding = [path for path in kept if any(secret.encode() in path.read_bytes() for secret in secrets)]
    assert {path.name for path in holding} >= {"settings.json", "server.properties", "spark.properties"}
    assert [path for path in holding if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    for name in ("kafka", "minio", "spark", "logs"):
        assert stat.S_IMODE((stack.home / name).stat().st_mode) == 0o700


def test_a_home_of_an_earlier_version_gets_what_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    layout = Layout(tmp_path)
    try:
        first = provision.provision(layout)
        written = json.loads(layout.settings_file.read_text())
        for name in ("kafka", "spark", "control_room", "control_room_read_only"):
            del written["local"]["secrets"][name]
        written["local"]["ports"]["code_server"] = 4000
        written["kafka"] = {"bootstrap_servers": first.kafka.bootstrap_servers}
        layout.settings_file.write_text(json.dumps(written))
        again = provision.provision(layout)
        assert again.kafka.security_protocol == "SASL_PLAINTEXT"
        assert again.kafka.bootstrap_servers == first.kafka.bootstrap_servers
        assert again.spark.token not in (None, first.spark.token)
        assert again.spark.address == first.spark.address
        assert again.dagster.token
        assert again.postgres == first.postgres
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()


def test_addresses_are_told_without_their_secrets() -> None:
    given = SparkSettings(remote="sc://127.0.0.1:15002/;authorization=Bearer%20abc;session_id=x")
    assert (given.place, given.token) == ("sc://127.0.0.1:15002", "abc")
    assert SparkSettings(remote="sc://h/;session_id=x;authorization=Bearer%20abc").token == "abc"
    assert SparkSettings(remote="sc://h:1/;session_id=x").token is None
    assert set(KafkaSettings().client()) == {"bootstrap.servers", "security.protocol"}


def test_a_socket_s_path_is_never_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    assert Settings().code_server_socket == tmp_path / "dagster-code" / "socket"
    monkeypatch.setenv("PULSE_HOME", str(tmp_path / ("long" * 30)))
    assert len(str(Settings().code_server_socket)) < 107
