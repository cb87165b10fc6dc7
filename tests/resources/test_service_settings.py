"""Addresses and secrets of services, as their clients take them."""

import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import psycopg2.extensions
import pytest
import sqlalchemy
import yoyo.connections
from hypothesis import given, strategies as st
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr, ValidationError

from pulse_resources.errors import UserError
from pulse_resources.local import java_tls
from pulse_resources.settings import Settings, load_settings
from pulse_resources.settings.service_settings import (
    KafkaSettings,
    ObjectStoreSettings,
    PostgresSettings,
    SparkSettings,
)

HOSTILE = "p@:/%41#?'\" $\\+&=;,{}[]ü"
CA, CERTIFICATE, KEY = Path("/tls/ca bundle.pem"), Path("/tls/certificate.pem"), Path("/tls/key&.pem")


@given(password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_a_password_of_any_characters_is_the_same_to_every_client(password: str) -> None:
    settings = PostgresSettings(role_passwords={"pulse_api": SecretStr(password)}, sslrootcert=CA, sslkey=KEY)
    url = settings.url("pulse_api")
    for parsed in (conninfo_to_dict(url), psycopg2.extensions.parse_dsn(url)):
        assert (parsed["password"], parsed["user"]) == (password, "pulse_api")
        assert (parsed["sslrootcert"], parsed["sslkey"]) == (str(CA), str(KEY))
        assert (parsed["host"], parsed["port"], parsed["dbname"]) == ("127.0.0.1", "5432", "pulse")
    engine = sqlalchemy.make_url(settings.url("pulse_api", "psycopg"))
    assert (engine.password, engine.query["sslkey"]) == (password, str(KEY))
    moved = yoyo.connections.parse_uri(settings.url("pulse_api", "psycopg"))
    assert (moved.scheme, moved.password, moved.args["sslkey"]) == ("postgresql+psycopg", password, str(KEY))


def test_users_databases_and_addresses_are_quoted_alike() -> None:
    settings = PostgresSettings(
        host="::1", superuser="dba@corp", superuser_password=SecretStr(HOSTILE), require_auth=""
    )
    parsed = conninfo_to_dict(settings.superuser_url("my db"))
    assert (parsed["host"], parsed["user"], parsed["dbname"]) == ("::1", "dba@corp", "my db")
    assert "@[::1]:5432/x?" in settings.superuser_url("x")


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({}, None),
        ({"sslrootcert": CA}, "verify-full"),
        ({"sslrootcert": "system"}, "verify-full"),
        ({"sslrootcert": CA, "sslmode": "verify-ca"}, "verify-ca"),
        ({"sslmode": "require"}, "require"),
    ],
)
def test_a_given_certificate_authority_is_verified(given: dict[str, object], mode: str | None) -> None:
    assert PostgresSettings.model_validate(given).tls.get("sslmode") == mode


def test_kafka_s_clients_get_files_and_passwords_as_far_as_the_protocol_has_them() -> None:
    settings = KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        password=SecretStr(HOSTILE),
        ca_file=CA,
        certificate_file=CERTIFICATE,
        key_file=KEY,
        key_password=SecretStr("secret"),
    )
    ssl = {
        "ssl.ca.location": str(CA),
        "ssl.certificate.location": str(CERTIFICATE),
        "ssl.key.location": str(KEY),
        "ssl.key.password": "secret",
    }
    sasl = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "pulse", "sasl.password": HOSTILE}
    where = {"bootstrap.servers": "127.0.0.1:9092"}
    for protocol, expected in (
        ("SASL_SSL", ssl | sasl),
        ("SSL", ssl),
        ("SASL_PLAINTEXT", sasl),
        ("PLAINTEXT", {}),
    ):
        client = settings.model_copy(update={"security_protocol": protocol}).client()
        assert client == where | {"security.protocol": protocol} | expected
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (PostgresSettings, "sslrootcert"),
        (PostgresSettings, "sslkey"),
        (KafkaSettings, "ca_file"),
        (ObjectStoreSettings, "ca_file"),
    ],
)
def test_a_file_is_named_by_its_whole_path(
    kind: type[PostgresSettings | KafkaSettings | ObjectStoreSettings], field: str
) -> None:
    with pytest.raises(ValidationError, match="not an absolute path"):
        kind.model_validate({field: "ca.pem"})


def test_spark_s_driver_gets_the_files_that_it_can_read(tmp_path: Path) -> None:
    system = PostgresSettings(sslrootcert="system", sslcert=CERTIFICATE, sslkey=KEY)
    assert java_tls.jdbc(tmp_path, system) == (
        "&sslmode=verify-full&sslcert=%2Ftls%2Fcertificate.pem"
        f"&sslkey={str(tmp_path).replace('/', '%2F')}%2Fpostgres.pk8"
        "&sslfactory=org.postgresql.ssl.DefaultJavaSSLFactory"
    )
    assert java_tls.jdbc(tmp_path, PostgresSettings()) == ""
    key = tmp_path / "key.pem"
    settings = Settings(postgres=PostgresSettings(sslkey=key))
    with pytest.raises(UserError, match="PULSE_POSTGRES__SSLKEY cannot be read"):
        java_tls.prepare(tmp_path, settings)
    key.write_text("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n")
    with pytest.raises(UserError, match="not a key for Spark's driver"):
        java_tls.prepare(tmp_path, settings)
    store = Settings(object_store=ObjectStoreSettings(ca_file=key))
    with pytest.raises(UserError, match="no certificate in it"):
        java_tls.prepare(tmp_path, store)


@pytest.mark.parametrize(
    ("remote", "sent"),
    [
        ("sc://h", "sc://h:15002/;authorization=Bearer%20p%2Fq"),
        ("sc://h:1/;use_ssl=true", "sc://h:1/;use_ssl=true;token=p%2Fq"),
        ("sc://h:1/;session_id=x;user_id=u", "sc://h:1/;user_id=u;authorization=Bearer%20p%2Fq"),
    ],
)
def test_spark_s_token_is_a_header_where_the_client_would_not_send_it(remote: str, sent: str) -> None:
    settings = SparkSettings(remote=remote, token=SecretStr("p/q"))
    assert settings.url() == sent
    assert settings.url("s") == f"{sent};session_id=s"
    assert settings.bearer == "p/q"


def test_spark_s_remote_may_have_the_token_itself() -> None:
    settings = SparkSettings(remote="sc://h:1/;authorization=Bearer%20abc;session_id=x")
    assert (settings.url(), settings.session_id) == ("sc://h:1/;authorization=Bearer%20abc", "x")
    assert SparkSettings(remote="sc://h:1").url("y") == "sc://h:1/;session_id=y"


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
def test_an_idle_connection_is_probed(stack: Settings, connect: Any) -> None:
    """Else a firewall forgets it, and a service that listens on it hears nothing of revoked keys."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
    with (
        closing(connect(stack.postgres.url("pulse_api"))) as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as transport,
    ):
        values = [transport.getsockopt(socket.IPPROTO_TCP, option) for option in options]
    assert values == [10, 5, 30_000]


def test_the_address_of_a_source_is_not_reported_as_an_unknown_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    monkeypatch.setenv("PULSE_SOURCE__ACME__SHOP", "postgres://shop.example.com/shop")
    load_settings.cache_clear()
    try:
        load_settings()
    finally:
        load_settings.cache_clear()
