"""The doctor finds what is planted, says which setting to change, and finds nothing in a healthy stack."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from support.ingest import Owner
from typer.testing import CliRunner

from chaos.surroundings import superuser, with_settings
from chaos.waiting import PATIENCE_S
from pulse_api import cli
from pulse_pipelines.monitoring import doctor
from pulse_pipelines.monitoring.doctor import Finding, finding, spark_service
from pulse_resources import kafka, object_store
from pulse_resources.settings import Settings, setting_sources
from pulse_resources.store_keys import vended, vending_accounts


def wrong(service: str) -> dict[str, Finding]:
    """What is wrong with a service, by check."""
    return {each.check: each for each in doctor.examine(service) if not each.ok}


def looked_at(service: str) -> set[str]:
    return {each.check for each in doctor.examine(service)}


EVERYTHING = {
    "settings": {"values"},
    "machine": {"python", "home", "disk"},
    "alerts": {"log"},
    "postgres": {
        *("address", "roles", "superuser", "dagster database"),
        *("version", "rights", "migrations", "connections", "clock"),
    },
    "kafka": {"address", "login", "advertised addresses", "replication", "rights", "topics"},
    "object store": {"address", "rights", "clock", "mark", "vending"},
    "spark": {"address", "server", "job", "packages", "network"},
}


@pytest.mark.parametrize("service", EVERYTHING)
def test_nothing_is_wrong_with_the_embedded_stack(stack: None, owner: Owner, service: str) -> None:
    assert wrong(service) == {}
    assert looked_at(service) == EVERYTHING[service]


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port where nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


AWAY = {
    "POSTGRES__PORT": ("postgres", "{port}"),
    "KAFKA__BOOTSTRAP_SERVERS": ("kafka", "127.0.0.1:{port}"),
    "OBJECT_STORE__ENDPOINT": ("object store", "http://127.0.0.1:{port}"),
    "SPARK__REMOTE": ("spark", "sc://127.0.0.1:{port}"),
    "DAGSTER__WEBSERVER_PORT": ("dagster", "{port}"),
}


@pytest.mark.parametrize("setting", AWAY)
def test_a_service_that_is_away_is_found_with_its_setting(nobody: int, setting: str) -> None:
    service, value = AWAY[setting]
    with with_settings(**{setting: value.format(port=nobody)}):
        (found,) = doctor.examine(service)
    assert (found.check, found.ok) == ("ready" if service == "dagster" else "address", False)
    assert str(nobody) in found.found
    assert found.found.endswith("Connection refused")
    assert "Errno" not in found.found
    assert f"PULSE_{setting.split('__')[0]}__" in (found.fix or "")


def test_what_is_not_spark_connect_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client tries again for ten minutes."""
    monkeypatch.setattr(spark_service, "PATIENCE_S", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        with_settings(SPARK__REMOTE=f"sc://127.0.0.1:{silent.getsockname()[1]}"),
    ):
        found = wrong("spark")
    assert list(found) == ["server"]
    assert "not as Spark Connect" in found["server"].found
    assert "use_ssl=true" in str(found["server"].fix)


def test_a_token_that_spark_does_not_know_is_found_in_plain_words(stack: Settings) -> None:
    place = stack.spark.place
    with with_settings(SPARK__REMOTE=place, SPARK__TOKEN="hush-hush"):
        found = wrong("spark")
    assert list(found) == ["login"]
    assert "PULSE_SPARK__TOKEN" in str(found["login"].fix)
    assert not {"_InactiveRpcError", "hush"} & set(re.findall(r"\w+", str(found)))


@pytest.mark.parametrize(
    ("setting", "service", "value"),
    [("KAFKA__BOOTSTRAP_SERVERS", "kafka", "broker"), ("OBJECT_STORE__ENDPOINT", "object store", "minio")],
)
def test_an_address_that_is_none_is_found(setting: str, service: str, value: str) -> None:
    with with_settings(**{setting: value}):
        (found,) = doctor.examine(service)
    assert (found.check, found.ok) == ("ready" if service == "dagster" else "address", False)
    assert value in found.found


def test_a_password_that_is_wrong_is_found_and_not_shown(stack: None) -> None:
    with with_settings(POSTGRES__ROLE_PASSWORDS__PULSE_API="hush-hush"):
        found = wrong("postgres")
    assert list(found) == ["roles"]
    assert found["roles"].found.startswith("pulse_api: ")
    assert "hush" not in str(found)


def test_tenants_that_can_revoke_the_keys_of_others_are_found(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    vended.forget()
    assert wrong("object store") == {}
    vended.forget()
    with with_settings(OBJECT_STORE__VENDING_BY_TENANT="false"):
        assert "each of these can revoke" in wrong("object store")["vending"].found
    vended.forget()

    def refuse(*_: object) -> None:
        raise OSError("AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation")

    def revoke_all(*_: object) -> None:  # as if; the keys of the stack's other processes are needed
        monkeypatch.setattr(object_store, "listed", refuse)

    monkeypatch.setattr(vending_accounts, "revoke", revoke_all)
    assert "can revoke the keys of others" in wrong("object store")["vending"].found


def test_a_superuser_that_cannot_sign_in_is_found(stack: None) -> None:
    with with_settings(POSTGRES__SUPERUSER_PASSWORD="hush-hush"):
        found = wrong("postgres")
    assert list(found) == ["superuser"]
    assert "postgres cannot sign in: " in found["superuser"].found
    assert "PULSE_POSTGRES__SUPERUSER_PASSWORD" in str(found["superuser"].fix)
    assert "hush" not in str(found)


def test_a_superuser_that_may_not_create_roles_is_found(stack: Settings) -> None:
    role = stack.postgres.role_passwords["pulse_api"].get_secret_value()
    with with_settings(POSTGRES__SUPERUSER="pulse_api", POSTGRES__SUPERUSER_PASSWORD=role):
        found = wrong("postgres")
    assert {name: each.found for name, each in found.items()} == {
        "superuser": "pulse_api may not create roles and databases"
    }


def test_a_machine_that_starts_nothing_needs_no_superuser(stack: None) -> None:
    with with_settings(POSTGRES__SUPERUSER_PASSWORD=""):
        (found,) = (each for each in doctor.examine("postgres") if each.check == "superuser")
    assert found.ok
    assert "only `pulse up` needs it" in found.found


NOTIFIERS = {
    "no address": ('["log", "webhook"]', "", "webhook", "has no http(s) address"),
    "nobody there": ('["webhook"]', "http://127.0.0.1:{port}/hush", "webhook", "does not answer"),
    "no port": ('["webhook"]', "http://127.0.0.1:hush/", "webhook", "has no port that is a number"),
    "no class": ('["nowhere:Pager"]', "", "nowhere:Pager", "No module named 'nowhere'"),
}


@pytest.mark.parametrize("fault", NOTIFIERS)
def test_a_notifier_that_tells_nobody_is_found(nobody: int, fault: str) -> None:
    names, url, check, said = NOTIFIERS[fault]
    with with_settings(ALERTS__NOTIFIERS=names, ALERTS__WEBHOOK_URL=url.format(port=nobody)):
        found = wrong("alerts")
    assert list(found) == [check]
    assert said in found[check].found
    assert "PULSE_ALERTS__" in str(found[check].fix)
    assert "hush" not in str(found)


def test_each_setting_that_is_wrong_is_found_and_the_other_services_are_looked_at(
    stack: None,
) -> None:
    planted = {
        "KAFKA__REPLICATION_FACTOR": "many",
        "KAFKA__CA_FILE": "ca.pem",
        "ALERTS__NOTIFIERS": "log",
        "API__PROT": "1",
    }
    with with_settings(**planted):
        found = wrong("settings")
        assert wrong("machine") == wrong("postgres") == {}
        (kafka,), (alerts,) = wrong("kafka").values(), wrong("alerts").values()
    assert found.keys() == {f"PULSE_{name}" for name in planted}
    assert "PULSE_API__PORT" in str(found["PULSE_API__PROT"].fix)
    assert "absolute path" in found["PULSE_KAFKA__CA_FILE"].found
    assert "as JSON" in str(found["PULSE_ALERTS__NOTIFIERS"].fix)
    assert "not looked at" in kafka.found
    assert "settings of alerts" in str(alerts.fix)


def test_a_file_of_settings_that_cannot_be_read_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text("{")
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    (found,) = wrong("settings").values()
    assert found.found.startswith("cannot be read")
    assert "not looked at" in wrong("kafka")["settings"].found


DATABASE_FAULTS = {
    "rights": (
        "ALTER ROLE pulse_api BYPASSRLS",
        "ALTER ROLE pulse_api NOBYPASSRLS",
        "ALTER ROLE pulse_api NOSUPERUSER NOBYPASSRLS",
    ),
    "migrations": (
        "UPDATE _yoyo_migration SET migration_id = '-' || migration_id",
        "UPDATE _yoyo_migration SET migration_id = substr(migration_id, 2)",
        "0055.baseline",
    ),
}


@pytest.mark.parametrize("check", DATABASE_FAULTS)
def test_a_role_beyond_row_level_security_and_a_missing_migration_are_found(stack: None, check: str) -> None:
    planted, right, said = DATABASE_FAULTS[check]
    with superuser() as connection:
        connection.execute(planted)
        try:
            found = wrong("postgres")
        finally:
            connection.execute(right)
    assert list(found) == [check]
    assert said in str(found[check].fix if check == "rights" else found[check].found)


TOPIC_FAULTS = {
    "cleanup.policy": ("compact", "delete", "is compacted"),
    "retention.ms": ("60000", "604800000", "forgets events within a day"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "producers' clocks"),
    "max.message.bytes": ("1000000", str(kafka.MAX_MESSAGE_BYTES), "no dead letter of full size"),
}


@pytest.mark.parametrize("name", TOPIC_FAULTS)
def test_a_topic_that_loses_events_is_found(owner: Owner, name: str) -> None:
    planted, right, said = TOPIC_FAULTS[name]
    _alter(owner.tenant.topic, name, planted)
    try:
        found = wrong("kafka")
    finally:
        _alter(owner.tenant.topic, name, right)
    assert list(found) == ["topics"]
    assert said in found["topics"].found
    assert f"{name}={right}" in str(found["topics"].fix)


def _alter(topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (done,) = kafka.admin().incremental_alter_configs([resource]).values()
    done.result()


def test_more_replicas_than_brokers_are_found(stack: None) -> None:
    with with_settings(KAFKA__REPLICATION_FACTOR=3):
        found = wrong("kafka")
    assert "PULSE_KAFKA__REPLICATION_FACTOR to at most 1" in str(found["replication"].fix)


def test_a_bucket_that_is_not_there_is_found(stack: None) -> None:
    with with_settings(OBJECT_STORE__BUCKET="nowhere"):
        found = wrong("object store")
    assert list(found) == ["rights"]
    assert "cannot write in nowhere" in found["rights"].found


PLAIN = {
    "postgres": ("POSTGRES__SSLMODE", "require", "speaks plain text", "PULSE_POSTGRES__SSLMODE=disable"),
    "kafka": ("KAFKA__SECURITY_PROTOCOL", "SASL_SSL", "not answer in TLS", "to SASL_PLAINTEXT"),
    "object store": ("OBJECT_STORE__ENDPOINT", "https://{store}", "not answer in TLS", "Write http://"),
}


@pytest.mark.parametrize("service", PLAIN)
def test_tls_spoken_to_a_service_without_it_is_found(stack: Settings, service: str) -> None:
    setting, value, said, fix = PLAIN[service]
    store = stack.object_store.endpoint.removeprefix("http://")
    with with_settings(**{setting: value.format(store=store)}):
        found = wrong(service)
    assert list(found) == ["tls"]
    assert said in found["tls"].found
    assert fix in str(found["tls"].fix)


@pytest.mark.parametrize(("seconds", "ok"), [(0, True), (3600, False), (-3600, False)])
def test_a_clock_that_is_wrong_is_found(seconds: int, ok: bool) -> None:
    found = finding.clock("postgres", datetime.now(UTC) + timedelta(seconds=seconds))
    assert found.ok == ok
    assert ("ahead of" in found.found) == (seconds > 0) or ok


def test_a_home_that_nobody_can_write_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_HOME", "/dev/null/pulse")
    assert list(wrong("machine")) == ["home"]


def test_the_command_ends_with_1_and_says_what_to_do(nobody: int) -> None:
    settings = {setting: value.format(port=nobody) for setting, (_, value) in AWAY.items()}
    with with_settings(**settings, API__PORT=nobody, LAKE__PORT=nobody):
        result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["healthy"]
    assert {each["service"] for each in found["findings"] if not each["ok"]} == doctor.SERVICES.keys() - {
        "settings",
        "machine",
        "alerts",
    }
    assert all(each["fix"] for each in found["findings"] if not each["ok"])


@pytest.mark.parametrize(("status", "ok"), [(200, True), (503, False)])
@pytest.mark.parametrize("service", ["api", "lake", "dagster"])
def test_a_service_of_another_host_is_asked_at_its_public_url(
    service: str, status: int, ok: bool, nobody: int
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as other:
        threading.Thread(target=other.handle_request).start()
        url = f"http://127.0.0.1:{other.server_port}/prefix"
        port = "WEBSERVER_PORT" if service == "dagster" else "PORT"
        with with_settings(**{f"{service}__{port}".upper(): nobody, f"{service}__PUBLIC_URL".upper(): url}):
            (ready,) = doctor.examine(service)
    assert ready.ok == ok
    assert url in ready.found
    assert f"127.0.0.1:{nobody}" in ready.found


@pytest.mark.slow
def test_a_folder_without_a_stack_is_said_first(tmp_path: Path) -> None:
    """The default addresses may be those of another stack, and its findings were taken for one's own."""
    command = [sys.executable, "-c", "from pulse_api.cli import main; main()", "doctor", "--json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PULSE_")}
    environment["PULSE_HOME"] = str(tmp_path / "nothere")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr.lstrip().startswith(f"No stack has been started in {tmp_path / 'nothere'}")
    assert not (tmp_path / "nothere").exists()


def test_a_setting_is_shown_with_its_source_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remote = "sc://127.0.0.1:1/;authorization=Bearer%20hush"
    file = {"kafka": {"password": "hush", "username": "shop"}, "spark": {"remote": remote}}
    (tmp_path / "settings.json").write_text(json.dumps(file))
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    with with_settings(POSTGRES__ROLE_PASSWORDS__PULSE_API="hush", INGEST__FLUSH_SECONDS=5):
        found = {each.name: (each.value, each.source) for each in setting_sources.in_force()}
        printed = CliRunner().invoke(cli.app, ["config"]).stdout
    assert found["PULSE_INGEST__FLUSH_SECONDS"] == ("5.0", "environment")
    assert found["PULSE_KAFKA__USERNAME"] == ("shop", "file")
    assert found["PULSE_KAFKA__PARTITIONS_PER_TOPIC"] == ("2", "default")
    assert found["PULSE_SPARK__REMOTE"] == ("sc://127.0.0.1:1", "file")
    assert found["PULSE_KAFKA__PASSWORD"] == ("**********", "file")
    assert found["PULSE_POSTGRES__ROLE_PASSWORDS"][1] == "environment"
    assert "hush" not in str(found) + printed
    assert len(found) == sum(
        len(info.annotation.model_fields) for info in Settings.model_fields.values() if info.annotation
    )


def test_a_section_that_is_almost_one_is_answered_with_the_right_one() -> None:
    result = CliRunner().invoke(cli.app, ["config", "kafak"])
    assert result.exit_code == 2
    assert "Did you mean kafka?" in result.stderr
