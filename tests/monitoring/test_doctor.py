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
    return {verdict.check: verdict for verdict in doctor.examine(service) if not verdict.ok}


def examined_checks(service: str) -> set[str]:
    return {verdict.check for verdict in doctor.examine(service)}


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
    assert examined_checks(service) == EVERYTHING[service]


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port where nobody listens."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


AWAY = {
    "POSTGRES__PORT": ("postgres", "{port}"),
    "KAFKA__BOOTSTRAP_SERVERS": ("kafka", "127.0.0.1:{port}"),
    "OBJECT_STORE__ENDPOINT": ("object store", "http://127.0.0.1:{port}"),
    "SPARK__REMOTE": ("spark", "sc://127.0.0.1:{port}"),
    "DAGSTER__WEBSERVER_PORT": ("dagster", "{port}"),
}


@pytest.mark.parametrize("setting", AWAY)
def test_a_service_that_is_away_is_reported_with_its_setting(nobody: int, setting: str) -> None:
    service, value = AWAY[setting]
    with with_settings(**{setting: value.format(port=nobody)}):
        (result,) = doctor.examine(service)
    assert (result.check, result.ok) == ("ready" if service == "dagster" else "address", False)
    assert str(nobody) in result.found
    assert result.found.endswith("Connection refused")
    assert "Errno" not in result.found
    assert f"PULSE_{setting.split('__')[0]}__" in (result.fix or "")


def test_a_server_that_is_not_spark_connect_is_reported_without_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client tries again for ten minutes."""
    monkeypatch.setattr(spark_service, "PATIENCE_S", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        with_settings(SPARK__REMOTE=f"sc://127.0.0.1:{silent.getsockname()[1]}"),
    ):
        failed = wrong("spark")
    assert list(failed) == ["server"]
    assert "not as Spark Connect" in failed["server"].found
    assert "use_ssl=true" in str(failed["server"].fix)


def test_an_unknown_token_of_spark_is_reported_in_plain_words(stack: Settings) -> None:
    place = stack.spark.place
    with with_settings(SPARK__REMOTE=place, SPARK__TOKEN="hush-hush"):
        failed = wrong("spark")
    assert list(failed) == ["login"]
    assert "PULSE_SPARK__TOKEN" in str(failed["login"].fix)
    assert not {"_InactiveRpcError", "hush"} & set(re.findall(r"\w+", str(failed)))


@pytest.mark.parametrize(
    ("setting", "service", "value"),
    [("KAFKA__BOOTSTRAP_SERVERS", "kafka", "broker"), ("OBJECT_STORE__ENDPOINT", "object store", "minio")],
)
def test_an_invalid_address_is_reported(setting: str, service: str, value: str) -> None:
    with with_settings(**{setting: value}):
        (result,) = doctor.examine(service)
    assert (result.check, result.ok) == ("ready" if service == "dagster" else "address", False)
    assert value in result.found


def test_a_wrong_password_is_reported_and_not_shown(stack: None) -> None:
    with with_settings(POSTGRES__ROLE_PASSWORDS__PULSE_API="hush-hush"):
        failed = wrong("postgres")
    assert list(failed) == ["roles"]
    assert failed["roles"].found.startswith("pulse_api: ")
    assert "hush" not in str(failed)


def test_tenants_that_can_revoke_the_keys_of_others_are_reported(
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


def test_a_superuser_that_cannot_sign_in_is_reported(stack: None) -> None:
    with with_settings(POSTGRES__SUPERUSER_PASSWORD="hush-hush"):
        failed = wrong("postgres")
    assert list(failed) == ["superuser"]
    assert "postgres cannot sign in: " in failed["superuser"].found
    assert "PULSE_POSTGRES__SUPERUSER_PASSWORD" in str(failed["superuser"].fix)
    assert "hush" not in str(failed)


def test_a_superuser_that_may_not_create_roles_is_reported(stack: Settings) -> None:
    role = stack.postgres.role_passwords["pulse_api"].get_secret_value()
    with with_settings(POSTGRES__SUPERUSER="pulse_api", POSTGRES__SUPERUSER_PASSWORD=role):
        failed = wrong("postgres")
    assert {name: result.found for name, result in failed.items()} == {
        "superuser": "pulse_api may not create roles and databases"
    }


def test_a_machine_that_starts_nothing_needs_no_superuser(stack: None) -> None:
    with with_settings(POSTGRES__SUPERUSER_PASSWORD=""):
        (result,) = (verdict for verdict in doctor.examine("postgres") if verdict.check == "superuser")
    assert result.ok
    assert "only `pulse up` needs it" in result.found


NOTIFIERS = {
    "no address": ('["log", "webhook"]', "", "webhook", "has no http(s) address"),
    "nobody there": ('["webhook"]', "http://127.0.0.1:{port}/hush", "webhook", "does not answer"),
    "no port": ('["webhook"]', "http://127.0.0.1:hush/", "webhook", "has no port that is a number"),
    "no class": ('["nowhere:Pager"]', "", "nowhere:Pager", "No module named 'nowhere'"),
}


@pytest.mark.parametrize("fault", NOTIFIERS)
def test_a_notifier_without_receivers_is_reported(nobody: int, fault: str) -> None:
    names, url, check, message = NOTIFIERS[fault]
    with with_settings(ALERTS__NOTIFIERS=names, ALERTS__WEBHOOK_URL=url.format(port=nobody)):
        failed = wrong("alerts")
    assert list(failed) == [check]
    assert message in failed[check].found
    assert "PULSE_ALERTS__" in str(failed[check].fix)
    assert "hush" not in str(failed)


def test_each_wrong_setting_is_reported_and_the_other_services_are_examined(
    stack: None,
) -> None:
    planted = {
        "KAFKA__REPLICATION_FACTOR": "many",
        "KAFKA__CA_FILE": "ca.pem",
        "ALERTS__NOTIFIERS": "log",
        "API__PROT": "1",
    }
    with with_settings(**planted):
        failed = wrong("settings")
        assert wrong("machine") == wrong("postgres") == {}
        (kafka,), (alerts,) = wrong("kafka").values(), wrong("alerts").values()
    assert failed.keys() == {f"PULSE_{name}" for name in planted}
    assert "PULSE_API__PORT" in str(failed["PULSE_API__PROT"].fix)
    assert "absolute path" in failed["PULSE_KAFKA__CA_FILE"].found
    assert "as JSON" in str(failed["PULSE_ALERTS__NOTIFIERS"].fix)
    assert "not looked at" in kafka.found
    assert "settings of alerts" in str(alerts.fix)


def test_an_unreadable_file_of_settings_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    (result,) = wrong("settings").values()
    assert result.found.startswith("cannot be read")
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
def test_a_role_beyond_row_level_security_and_a_missing_migration_are_reported(
    stack: None, check: str
) -> None:
    planted, right, message = DATABASE_FAULTS[check]
    with superuser() as connection:
        connection.execute(planted)
        try:
            failed = wrong("postgres")
        finally:
            connection.execute(right)
    assert list(failed) == [check]
    assert message in str(failed[check].fix if check == "rights" else failed[check].found)


TOPIC_FAULTS = {
    "cleanup.policy": ("compact", "delete", "is compacted"),
    "retention.ms": ("60000", "604800000", "forgets events within a day"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "producers' clocks"),
    "max.message.bytes": ("1000000", str(kafka.MAX_MESSAGE_BYTES), "no dead letter of full size"),
}


@pytest.mark.parametrize("name", TOPIC_FAULTS)
def test_a_topic_that_loses_events_is_reported(owner: Owner, name: str) -> None:
    planted, right, message = TOPIC_FAULTS[name]
    _alter(owner.tenant.topic, name, planted)
    try:
        failed = wrong("kafka")
    finally:
        _alter(owner.tenant.topic, name, right)
    assert list(failed) == ["topics"]
    assert message in failed["topics"].found
    assert f"{name}={right}" in str(failed["topics"].fix)


def _alter(topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    (done,) = kafka.admin().incremental_alter_configs([resource]).values()
    done.result()


def test_more_replicas_than_brokers_are_reported(stack: None) -> None:
    with with_settings(KAFKA__REPLICATION_FACTOR=3):
        failed = wrong("kafka")
    assert "PULSE_KAFKA__REPLICATION_FACTOR to at most 1" in str(failed["replication"].fix)


def test_a_missing_bucket_is_reported(stack: None) -> None:
    with with_settings(OBJECT_STORE__BUCKET="nowhere"):
        failed = wrong("object store")
    assert list(failed) == ["rights"]
    assert "cannot write in nowhere" in failed["rights"].found


PLAIN = {
    "postgres": ("POSTGRES__SSLMODE", "require", "speaks plain text", "PULSE_POSTGRES__SSLMODE=disable"),
    "kafka": ("KAFKA__SECURITY_PROTOCOL", "SASL_SSL", "not answer in TLS", "to SASL_PLAINTEXT"),
    "object store": ("OBJECT_STORE__ENDPOINT", "https://{store}", "not answer in TLS", "Write http://"),
}


@pytest.mark.parametrize("service", PLAIN)
def test_tls_to_a_service_without_it_is_reported(stack: Settings, service: str) -> None:
    setting, value, message, fix = PLAIN[service]
    store = stack.object_store.endpoint.removeprefix("http://")
    with with_settings(**{setting: value.format(store=store)}):
        failed = wrong(service)
    assert list(failed) == ["tls"]
    assert message in failed["tls"].found
    assert fix in str(failed["tls"].fix)


@pytest.mark.parametrize(("seconds", "ok"), [(0, True), (3600, False), (-3600, False)])
def test_a_wrong_clock_is_reported(seconds: int, ok: bool) -> None:
    result = finding.clock("postgres", datetime.now(UTC) + timedelta(seconds=seconds))
    assert result.ok == ok
    assert ("ahead of" in result.found) == (seconds > 0) or ok


def test_an_unwritable_home_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_HOME", "/dev/null/pulse")
    assert list(wrong("machine")) == ["home"]


def test_the_command_exits_with_1_and_a_fix_for_each_finding(nobody: int) -> None:
    settings = {setting: value.format(port=nobody) for setting, (_, value) in AWAY.items()}
    with with_settings(**settings, API__PORT=nobody, LAKE__PORT=nobody):
        result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert not report["healthy"]
    assert {
        verdict["service"] for verdict in report["findings"] if not verdict["ok"]
    } == doctor.SERVICES.keys() - {
        "settings",
        "machine",
        "alerts",
    }
    assert all(verdict["fix"] for verdict in report["findings"] if not verdict["ok"])


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
def test_a_folder_without_a_stack_is_reported_first(tmp_path: Path) -> None:
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
        settings = {setting.name: (setting.value, setting.source) for setting in setting_sources.in_force()}
        printed = CliRunner().invoke(cli.app, ["config"]).stdout
    assert settings["PULSE_INGEST__FLUSH_SECONDS"] == ("5.0", "environment")
    assert settings["PULSE_KAFKA__USERNAME"] == ("shop", "file")
    assert settings["PULSE_KAFKA__PARTITIONS_PER_TOPIC"] == ("2", "default")
    assert settings["PULSE_SPARK__REMOTE"] == ("sc://127.0.0.1:1", "file")
    assert settings["PULSE_KAFKA__PASSWORD"] == ("**********", "file")
    assert settings["PULSE_POSTGRES__ROLE_PASSWORDS"][1] == "environment"
    assert "hush" not in str(settings) + printed
    assert len(settings) == sum(
        len(info.annotation.model_fields) for info in Settings.model_fields.values() if info.annotation
    )


def test_a_section_that_is_almost_one_is_answered_with_the_right_one() -> None:
    result = CliRunner().invoke(cli.app, ["config", "kafak"])
    assert result.exit_code == 2
    assert "Did you mean kafka?" in result.stderr
