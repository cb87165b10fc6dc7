"""Services of the embedded stack ask who comes: another user of the machine reaches every port of it."""

import atexit
import contextlib
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import psycopg2
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import SparkConnectClient
from support.faults import AtPoint

from chaos.surroundings import pulse
from chaos.waiting import PATIENCE_S
from pulse_resources import kafka, spark
from pulse_resources.local import accounts, minio, provision, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.service_settings import KafkaSettings, PostgresSettings, SparkSettings


@pytest.mark.parametrize(
    "stranger",
    [
        {"security.protocol": "PLAINTEXT"},
        {"sasl.password": "wrong"},
        {"sasl.username": "guest"},
        {"sasl.mechanism": "PLAIN"},
    ],
)
def test_kafka_lists_nothing_to_a_stranger(stack: Settings, stranger: dict[str, str]) -> None:
    errors: list[KafkaError] = []
    quiet = {"log_level": 0, "error_cb": errors.append}
    with pytest.raises(KafkaException):
        AdminClient(stack.kafka.client() | quiet | stranger).list_topics(timeout=1.5)
    assert kafka.admin().list_topics(timeout=PATIENCE_S).brokers


@pytest.mark.parametrize("require_auth", ["scram-sha-256", PostgresSettings().require_auth, ""])
@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_stranger_on_the_port_of_postgres_gets_no_password(
    connect: Callable[[str], object], require_auth: str
) -> None:
    """A stranger who bound it while Postgres was away asked for passwords in clear text, and got them."""
    received: list[bytes] = []

    def ask(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            while int.from_bytes((head := client.recv(8))[4:8]) != 196_608:  # it asks for encryption first
                client.sendall(b"N") if head else None
            client.recv(1_000)
            client.sendall(b"R" + (8).to_bytes(4) + (3).to_bytes(4))
            client.settimeout(PATIENCE_S)
            received.append(client.recv(1_000))

    with socket.create_server(("127.0.0.1", 0)) as server:
        stranger = threading.Thread(target=ask, args=[server])
        stranger.start()
        settings = PostgresSettings(
            port=server.getsockname()[1],
            role_passwords={"pulse_owner": SecretStr("the-password")},
            require_auth=require_auth,
        )
        with pytest.raises((psycopg.OperationalError, psycopg2.OperationalError)):
            connect(settings.url("pulse_owner"))
        stranger.join()
    assert (b"the-password" in b"".join(received)) is (require_auth == "")


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
        assert str(stack.spark.bearer) not in str(session.conf.getAll)


def small_file(path: Path) -> bytes | None:
    """What a file of less than a megabyte holds; None of one that running services removed meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size < 1_000_000:
            return path.read_bytes()
    return None


def test_secrets_are_in_no_file_of_which_others_could_read(stack: Settings) -> None:
    secrets = json.loads((stack.home / "settings.json").read_text())["local"]["secrets"].values()
    roots = [stack.home, *accounts.elsewhere(stack.home)]
    holding = [
        path
        for root in roots
        for path in root.rglob("*")
        if (content := small_file(path)) and any(secret.encode() in content for secret in secrets)
    ]
    assert {path.name for path in holding} >= {"settings.json", "server.properties", "spark.properties"}
    assert [path for path in holding if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert [path for path in holding if path.is_relative_to(stack.home / "logs")] == []
    for name in ("postgres", "kafka", "minio", "spark", "logs"):
        assert stat.S_IMODE((stack.home / name).stat().st_mode) & 0o067 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run services under other users")
def test_servers_run_under_users_of_their_own_that_read_nothing_else(stack: Settings) -> None:
    layout = Layout(stack.home)
    recorded = state.read(layout)
    assert recorded
    owners = {name: recorded.services[name].process for name in ("postgres", "kafka", "minio")}
    users = {name: Path(f"/proc/{process.pid}").stat().st_uid for name, process in owners.items() if process}
    assert len(set(users.values()) | {0}) == 4
    closed = [stack.home / "settings.json", stack.home / "logs", stack.home / "spark" / "spark.properties"]
    postgres = accounts.existing_account(("postgres", "nobody"))
    for name, account in (
        ("postgres", postgres),
        *((n, accounts.account(layout, n)) for n in ("kafka", "minio")),
    ):
        assert account
        assert account.uid == users[name]
        other_paths = [(stack.home / other).resolve() for other in users if other != name]
        for path in (*closed, *other_paths):
            assert path.exists()
            assert accounts.run(account, "test", "-r", str(path)).returncode == 1, f"{name} reads {path}"
        base = (stack.home / name).resolve()
        assert accounts.run(account, "test", "-w", str(base / "data")).returncode == 0
        assert accounts.run(account, "test", "-w", str(base)).returncode == 1, "its programs are there"


def test_a_server_whose_data_is_out_of_reach_gets_no_account(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    layout = Layout(tmp_path)
    layout.folder("minio")
    assert accounts.account(layout, "minio") is None
    assert accounts.folder(layout, "minio", None) == tmp_path / "minio"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run services under other users")
def test_data_of_an_earlier_version_becomes_the_accounts() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o711)
        layout = Layout(Path(place))
        old = layout.folder("minio")
        for folder in (".minio.sys", "pulse"):
            (old / folder).mkdir()
            (old / folder / "kept").write_text("kept")
        service = minio.service(layout, load_settings())
        assert service.account
        assert service.setup
        for _ in range(2):  # a start again changes nothing
            service.setup()
            assert sorted(path.name for path in (old / "data").iterdir()) == [".minio.sys", "pulse"]
        file = old / "data" / "pulse" / "kept"
        assert file.read_text() == "kept"
        assert file.stat().st_uid == service.account.uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run services under other users")
def test_data_that_was_given_in_part_is_given_again(tmp_path: Path, at: AtPoint) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("")
    owner = accounts.Account("nobody-else", 61_599, 61_599)
    folders = iter(("inner", "data"))

    def die_before_the_last() -> None:
        if next(folders, None) == "data":
            raise KeyboardInterrupt

    at("accounts.before_folder", die_before_the_last, always=True)
    with pytest.raises(KeyboardInterrupt):
        accounts.give_to(owner, tmp_path / "data")
    accounts.give_to(owner, tmp_path / "data")
    for path in (tmp_path / "data", inner, inner / "file"):
        assert path.stat().st_uid == owner.uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run services under other users")
def test_a_program_of_a_new_version_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    owner, program, base = (
        accounts.Account("nobody-else", 61_599, 61_599),
        tmp_path / "program",
        tmp_path / "base",
    )
    base.mkdir()
    for version in ("1", "2"):
        program.unlink(missing_ok=True)
        program.write_text(version)
        program.chmod(0o700)
        for _ in range(2):
            assert accounts.reachable(owner, program, base).read_text() == version
    assert len(list((base / accounts.PROGRAMS).iterdir())) == 1


def test_a_home_of_an_earlier_version_gets_the_missing_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    layout = Layout(tmp_path)
    try:
        first = provision.provision(layout)
        written = json.loads(layout.settings_file.read_text())
        for name in ("kafka", "spark", "control_room", "control_room_read_only"):
            del written["local"]["secrets"][name]
        (tmp_path / "kafka" / "data").mkdir(parents=True)  # formatted, without credentials
        del written["local"]["kafka_mechanism"]
        written["local"]["ports"]["code_server"] = 4000
        written["kafka"] = {"bootstrap_servers": first.kafka.bootstrap_servers}
        layout.settings_file.write_text(json.dumps(written))
        again = provision.provision(layout)
        assert first.kafka.sasl_mechanism == "SCRAM-SHA-256"
        assert again.kafka.security_protocol == "SASL_PLAINTEXT"
        assert again.kafka.sasl_mechanism == "PLAIN"
        assert again.kafka.bootstrap_servers == first.kafka.bootstrap_servers
        assert again.spark.bearer not in (None, first.spark.bearer)
        assert again.spark.address == first.spark.address
        assert again.dagster.token
        assert again.postgres == first.postgres
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()


def test_services_that_speak_plain_text_are_not_taken_for_others(stack: Settings) -> None:
    done = pulse("up", "--tls", check=False)
    assert done.returncode == 2
    assert "PULSE_HOME=/path pulse up --tls" in done.stdout + done.stderr


def test_addresses_are_shown_without_their_secrets() -> None:
    settings = SparkSettings(remote="sc://127.0.0.1:15002/;authorization=Bearer%20abc;session_id=x")
    assert (settings.place, settings.bearer) == ("sc://127.0.0.1:15002", "abc")
    assert SparkSettings(remote="sc://h/;session_id=x;authorization=Bearer%20abc").bearer == "abc"
    assert SparkSettings(remote="sc://h:1/;session_id=x").bearer is None
    assert set(KafkaSettings().client()) == {"bootstrap.servers", "security.protocol"}


def test_a_socket_s_path_is_never_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    assert Settings().code_server_socket == tmp_path / "dagster-code" / "socket"
    monkeypatch.setenv("PULSE_HOME", str(tmp_path / ("long" * 30)))
    assert len(str(Settings().code_server_socket)) < 107
