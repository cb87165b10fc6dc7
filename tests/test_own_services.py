"""Services over TLS, which ask for certificates, with passwords of any characters: events go all the way.

And whatever is wrong with such a connection, the doctor names it, and the setting that mends it.
"""

import hashlib
import hmac
import json
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
import psycopg2
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from dagster import RunsFilter
from psycopg import sql
from support.docs import blocks
from support.http import sample
from support.ingest import Owner, event, ingest, make_owner
from support.stack import choose_ports, stop

from chaos.clock import Clock
from chaos.surroundings import forget_connections, pulse, superuser, with_settings
from chaos.waiting import PATIENCE_S
from pulse_pipelines import dead_letters, registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.monitoring import doctor
from pulse_pipelines.monitoring.doctor import Finding
from pulse_pipelines.monitoring.doctor.kafka_service import describe_cluster
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.query.preview import preview
from pulse_pipelines.registry import keys
from pulse_pipelines.runtime.storage import PooledStorage
from pulse_resources import kafka, object_store, postgres, spark
from pulse_resources.errors import Transient
from pulse_resources.iceberg import CATALOG
from pulse_resources.local import accounts, front_ends
from pulse_resources.local.layout import Layout
from pulse_resources.local.services import INFRASTRUCTURE
from pulse_resources.local.tls import Certificates, make
from pulse_resources.settings import Settings, load_settings

HOSTILE = "p@:/%41#?'\" $\\+&=;,{}[]ü"
SECRETS = {
    "POSTGRES__SUPERUSER_PASSWORD",
    *(f"POSTGRES__ROLE_PASSWORDS__PULSE_{role}" for role in ("OWNER", "API", "PIPELINE", "CATALOG", "LAKE")),
    "OBJECT_STORE__SECRET_KEY",
    "OBJECT_STORE__VENDING_SECRET_KEY",
}
YEARS = 11
"""After which the services' certificates have expired, and that of their authority has not."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stack of its own, whose services speak TLS and nothing else."""
    before = os.environ.get("PULSE_HOME")
    folder = tmp_path_factory.mktemp("tls")
    choose_ports(folder, tls=True)
    os.environ["PULSE_HOME"] = str(folder)
    try:
        with with_settings(**dict.fromkeys(SECRETS, HOSTILE)):
            pulse("up", "--tls", "--only", ",".join((*INFRASTRUCTURE, "api")))
            forget_connections()
            try:
                yield folder
            finally:
                forget_connections()
                stop()
    finally:
        os.environ.pop("PULSE_HOME")
        if before is not None:
            os.environ["PULSE_HOME"] = before
        forget_connections()


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    return load_settings()


@pytest.fixture(scope="module")
def tenant(home: Path) -> Owner:
    return make_owner()


def test_an_event_goes_all_the_way(tenant: Owner, settings: Settings) -> None:
    key = keys.issue_key(tenant.tenant, "test", tuple(KeyScope))
    with httpx.Client(
        base_url=front_ends.api_url(settings),
        headers={"Authorization": f"Bearer {key.text}"},
        timeout=PATIENCE_S,
    ) as http:
        assert http.post("/v1/collect", json=sample("a")).status_code == 202
        tenant.send(event("b"), b"not json", event("late", dataset="late"))
        ingest(tenant)
        assert {row["id"] for row in tenant.rows()} == {"a", "b"}
        answer = http.get("/v1/datasets/orders/preview")
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["rows"]) == 2
    assert preview(tenant.tenant, "orders", 5).num_rows == 2
    registry.create_dataset(tenant.tenant, "late", registry.find_dataset(tenant.tenant, "orders").schema_uri)
    (letter,) = dead_letters.list_dead_letters(tenant.tenant, dead_letters.Filter(dataset="late")).letters
    dead_letters.replay(tenant.tenant, [letter.letter_id])
    ingest(tenant)
    assert [row["id"] for row in tenant.rows("late")] == ["late"]
    assert reconcile_tenant(tenant.tenant).balanced
    with spark.session() as session:  # its own clients: JDBC to the catalog, S3 of Java
        table = f"{CATALOG}.{tenant.tenant.namespace}.orders"
        assert session.sql(f"SELECT count(*) AS n FROM {table}").toArrow().to_pylist() == [{"n": 2}]


def test_all_connections_are_encrypted(tenant: Owner, settings: Settings) -> None:
    with superuser() as connection:
        query = "SELECT DISTINCT usename, ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)"
        connections = {
            (encrypted, name)
            for user, encrypted, name in connection.execute(f"{query} WHERE client_addr IS NOT NULL")
            if user
        }
    assert connections == {(True, "/CN=Pulse client of this machine")}
    plain = settings.postgres.url("pulse_api") + "&sslmode=disable"
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(plain)
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(
            settings.postgres.model_copy(update={"sslcert": None, "sslkey": None}).url("pulse_api")
        )
    with with_settings(KAFKA__SECURITY_PROTOCOL="SASL_PLAINTEXT"), pytest.raises(KafkaException):
        describe_cluster(1)
    answer = httpx.get(
        settings.object_store.endpoint.replace("https", "http") + "/minio/health/live", timeout=PATIENCE_S
    )
    assert answer.status_code == 400


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run services under other users")
def test_no_service_s_account_reads_another_s_key(home: Path, settings: Settings) -> None:
    layout, postgres_account = Layout(home), accounts.existing_account(("postgres", "nobody"))
    keys_of = {
        "postgres": (postgres_account, "data/key.pem"),
        "kafka": (accounts.account(layout, "kafka"), "tls.pem"),
        "minio": (accounts.account(layout, "minio"), "certificates/private.key"),
    }
    for name, (account, own) in keys_of.items():
        other_paths = [
            (home / other).resolve() / path for other, (_, path) in keys_of.items() if other != name
        ]
        assert accounts.run(account, "test", "-r", str((home / name).resolve() / own)).returncode == 0
        for path in (*other_paths, settings.postgres.sslkey):
            assert Path(str(path)).exists()
            assert accounts.run(account, "test", "-r", str(path)).returncode == 1, f"{name} reads {path}"


def test_no_client_trusts_a_server_that_a_stranger_vouches_for(tenant: Owner, stranger: Certificates) -> None:
    location = registry.current_table(tenant.tenant, "orders").metadata_location
    names = ("POSTGRES__SSLROOTCERT", "KAFKA__CA_FILE", "OBJECT_STORE__CA_FILE")
    with with_settings(**dict.fromkeys(names, stranger.authority)):
        object_store.file_system.cache_clear()
        try:
            with pytest.raises(OSError, match="SSL"):
                object_store.store_time()
        finally:
            object_store.file_system.cache_clear()
        with pytest.raises(Transient, match="SSL"), duckdb_pool.connect() as connection:
            connection.execute(f"SELECT count(*) FROM {duckdb_pool.SCAN}", [location])
        with pytest.raises(KafkaException, match="certificate"):
            describe_cluster(10)
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            psycopg.connect(load_settings().postgres.url("pulse_api"))


def test_a_password_of_any_characters_reaches_postgres_by_every_client(settings: Settings) -> None:
    url = settings.postgres.url("pulse_pipeline")
    with psycopg.connect(url) as connection:
        assert connection.info.password == HOSTILE
    psycopg2.connect(url).close()
    storage = PooledStorage.from_config_value(None, {})  # SQLAlchemy
    assert storage.run_storage.get_runs(RunsFilter()) == []
    postgres.migrate(settings)  # yoyo


def test_a_password_of_any_characters_reaches_kafka(tenant: Owner) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = UserScramCredentialUpsertion("a,b=c", info, HOSTILE.encode())
    for done in kafka.admin().alter_user_scram_credentials([user]).values():
        done.result()
    with with_settings(KAFKA__USERNAME="a,b=c", KAFKA__PASSWORD=HOSTILE):
        assert describe_cluster(10).brokers
    with with_settings(KAFKA__USERNAME="a,b=c", KAFKA__PASSWORD=HOSTILE + "?"), pytest.raises(KafkaException):
        describe_cluster(10)


def test_temporary_credentials_open_the_object_store_to_every_client(
    tenant: Owner, settings: Settings
) -> None:
    """Of MinIO's security token service; without the token, the same key opens nothing."""
    if not tenant.rows():
        pytest.fail("nothing has landed")
    credentials = temporary_credentials(settings)
    with with_settings(**credentials):
        object_store.file_system.cache_clear()
        assert [finding.check for finding in doctor.examine("object store") if not finding.ok] == []
        assert len(tenant.rows()) == 2  # DuckDB
    del credentials["OBJECT_STORE__SESSION_TOKEN"]
    with with_settings(**credentials):
        object_store.file_system.cache_clear()
        assert [finding.check for finding in doctor.examine("object store") if not finding.ok] == ["rights"]
    object_store.file_system.cache_clear()


# what the doctor says --------------------------------------------------------------------------


def wrong(service: str) -> dict[str, Finding]:
    object_store.file_system.cache_clear()
    failed = {finding.check: finding for finding in doctor.examine(service) if not finding.ok}
    object_store.file_system.cache_clear()
    return failed


@pytest.mark.parametrize("service", ["postgres", "kafka", "object store"])
def test_the_doctor_finds_nothing_wrong(tenant: Owner, service: str) -> None:
    assert wrong(service) == {}
    assert {"tls", "certificate"} <= {finding.check for finding in doctor.examine(service)}


def test_the_page_s_settings_and_the_doctor_alone_lead_to_services_that_work(
    home: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody who has another home, the page's first block, and the advice of the doctor."""
    database, store, known = settings.postgres, settings.object_store, settings.kafka
    values = {
        "POSTGRES__HOST": database.host,
        "POSTGRES__SUPERUSER_PASSWORD": HOSTILE,
        "POSTGRES__SSLROOTCERT": database.sslrootcert,
        "KAFKA__BOOTSTRAP_SERVERS": known.bootstrap_servers,
        "KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA__SASL_MECHANISM": known.sasl_mechanism,
        "KAFKA__USERNAME": known.username,
        "KAFKA__PASSWORD": known.password.get_secret_value(),
        "KAFKA__CA_FILE": known.ca_file,
        "OBJECT_STORE__ENDPOINT": store.endpoint,
        "OBJECT_STORE__BUCKET": store.bucket,
        "OBJECT_STORE__ACCESS_KEY": store.access_key,
        "OBJECT_STORE__SECRET_KEY": HOSTILE,
    }
    block = blocks("own-services.md")[0]
    named = set(re.findall(r"PULSE_(\w+)=", block))
    assert named == values.keys()
    assert "pulse doctor" in block
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    place = {
        "POSTGRES__PORT": database.port,
        "OBJECT_STORE__CA_FILE": store.ca_file,
        "OBJECT_STORE__VENDING_BY_TENANT": True,
    }
    requested_settings = {
        "POSTGRES__SSLCERT": database.sslcert,
        "POSTGRES__SSLKEY": database.sslkey,
        "KAFKA__CERTIFICATE_FILE": known.certificate_file,
        "KAFKA__KEY_FILE": known.key_file,
    }
    with with_settings(**values, POSTGRES__PORT=database.port):
        forget_connections()
        assert wrong("settings") == {}
        advice = " ".join(str(finding.fix) for name in SERVICES for finding in wrong(name).values())
        for setting in ("OBJECT_STORE__CA_FILE", *requested_settings):
            assert f"PULSE_{setting}" in advice
    with with_settings(**values, **place, **requested_settings):
        forget_connections()
        assert {name: wrong(name) for name in SERVICES} == {name: {} for name in SERVICES}
    forget_connections()


@dataclass(frozen=True)
class Fault:
    """A setting that is wrong, and what the doctor says of it."""

    service: str
    given: dict[str, str]
    check: str
    found: str
    fix: str


STRANGER, NOWHERE = "{stranger}", "/nowhere/ca.pem"
SERVICES = {
    "postgres": ("POSTGRES__SSLROOTCERT", "POSTGRES__HOST", "localhost"),
    "kafka": ("KAFKA__CA_FILE", "KAFKA__BOOTSTRAP_SERVERS", "localhost:{kafka}"),
    "object store": ("OBJECT_STORE__CA_FILE", "OBJECT_STORE__ENDPOINT", "https://localhost:{minio}"),
}
FAULTS = {
    **{
        f"{service}, unknown authority": Fault(
            service, {ca: STRANGER}, "tls", "an authority that is unknown", f"PULSE_{ca}"
        )
        for service, (ca, _, _) in SERVICES.items()
    },
    **{
        f"{service}, no such file": Fault(service, {ca: NOWHERE}, "tls", f"PULSE_{ca}={NOWHERE}", "PEM files")
        for service, (ca, _, _) in SERVICES.items()
    },
    **{
        f"{service}, other name": Fault(
            service, {setting: address}, "tls", "not for the host name localhost", f"PULSE_{setting}"
        )
        for service, (_, setting, address) in SERVICES.items()
    },
    "postgres, plain text": Fault(
        "postgres", {"POSTGRES__SSLMODE": "disable"}, "tls", "speaks TLS", "PULSE_POSTGRES__SSLROOTCERT"
    ),
    "kafka, plain text": Fault(
        "kafka",
        {"KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT"},
        "tls",
        "speaks TLS",
        "PULSE_KAFKA__SECURITY_PROTOCOL to SASL_SSL",
    ),
    "object store, plain text": Fault(
        "object store",
        {"OBJECT_STORE__ENDPOINT": "http://127.0.0.1:{minio}"},
        "tls",
        "speaks TLS",
        "https:// in PULSE_OBJECT_STORE__ENDPOINT",
    ),
    "postgres, password": Fault(
        "postgres",
        {"POSTGRES__ROLE_PASSWORDS__PULSE_API": "wrong"},
        "roles",
        "password authentication failed",
        "PULSE_POSTGRES__ROLE_PASSWORDS",
    ),
    "postgres, another service's port": Fault(
        "postgres",
        {"POSTGRES__PORT": "{kafka}"},
        "address",
        "does not answer as Postgres does",
        "Correct PULSE_POSTGRES__HOST and PULSE_POSTGRES__PORT",
    ),
    "postgres, database": Fault(
        "postgres",
        {"POSTGRES__DATABASE": "nowhere"},
        "roles",
        'pulse_lake: database "nowhere" does not exist',
        "correct PULSE_POSTGRES__DATABASE",
    ),
    "postgres, Dagster's database": Fault(
        "postgres",
        {"POSTGRES__DAGSTER_DATABASE": "nowhere"},
        "dagster database",
        'database "nowhere" does not exist',
        "correct PULSE_POSTGRES__DAGSTER_DATABASE",
    ),
    "kafka, no SASL": Fault(
        "kafka",
        {"KAFKA__SECURITY_PROTOCOL": "SSL"},
        "login",
        "ends connections without an answer",
        "set PULSE_KAFKA__SECURITY_PROTOCOL to SASL_SSL",
    ),
    "kafka, no password": Fault(
        "kafka",
        {"KAFKA__PASSWORD": ""},
        "login",
        "must be set",
        "Set PULSE_KAFKA__USERNAME and PULSE_KAFKA__PASSWORD",
    ),
    "kafka, a URL": Fault(
        "kafka",
        {"KAFKA__BOOTSTRAP_SERVERS": "kafka://127.0.0.1:{kafka}"},
        "address",
        "is not host:port",
        "PULSE_KAFKA__BOOTSTRAP_SERVERS as host:port",
    ),
    "kafka, password": Fault(
        "kafka", {"KAFKA__PASSWORD": "wrong"}, "login", "invalid credentials", "Correct PULSE_KAFKA__USERNAME"
    ),
    "kafka, mechanism": Fault(
        "kafka",
        {"KAFKA__SASL_MECHANISM": "PLAIN"},
        "login",
        "SCRAM-SHA-256",
        "PULSE_KAFKA__SASL_MECHANISM to one that the broker supports",
    ),
    "object store, password": Fault(
        "object store",
        {"OBJECT_STORE__SECRET_KEY": "wrong"},
        "rights",
        "cannot write",
        "Correct PULSE_OBJECT_STORE__SECRET_KEY",
    ),
    "object store, key": Fault(
        "object store",
        {"OBJECT_STORE__ACCESS_KEY": "shop"},
        "rights",
        "cannot write",
        "Correct PULSE_OBJECT_STORE__ACCESS_KEY",
    ),
    "object store, bucket": Fault(
        "object store",
        {"OBJECT_STORE__BUCKET": "nowhere"},
        "rights",
        "cannot write in nowhere",
        "`pulse up` create the bucket nowhere, or correct PULSE_OBJECT_STORE__BUCKET",
    ),
    "object store, a bucket's address": Fault(
        "object store",
        {"OBJECT_STORE__BUCKET": "s3://pulse"},
        "address",
        "is not the name of a bucket",
        "PULSE_OBJECT_STORE__BUCKET to the name alone",
    ),
    "object store, bucket in the address": Fault(
        "object store",
        {"OBJECT_STORE__ENDPOINT": "https://127.0.0.1:{minio}/pulse"},
        "address",
        "is not the address of a service",
        "PULSE_OBJECT_STORE__ENDPOINT as https://host:port",
    ),
    "object store, region": Fault(
        "object store",
        {"OBJECT_STORE__REGION": "eu-central-1"},
        "rights",
        "region is wrong",
        "Set PULSE_OBJECT_STORE__REGION",
    ),
    "object store, another service's port": Fault(
        "object store",
        {"OBJECT_STORE__ENDPOINT": "https://127.0.0.1:{kafka}"},
        "rights",
        "NETWORK_CONNECTION",
        "Correct PULSE_OBJECT_STORE__ENDPOINT",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_wrong_setting_is_named_with_a_fix(
    name: str, home: Path, settings: Settings, stranger: Certificates
) -> None:
    fault = FAULTS[name]
    values = {
        "stranger": stranger.authority,
        "kafka": settings.kafka.bootstrap_servers.rpartition(":")[2],
        "minio": settings.object_store.endpoint.rpartition(":")[2],
    }
    with with_settings(**{name: value.format(**values) for name, value in fault.given.items()}):
        failed = wrong(fault.service)
    assert fault.check in failed
    assert fault.found in failed[fault.check].found
    assert fault.fix in (failed[fault.check].fix or "")
    assert HOSTILE not in str(failed)


def test_a_missing_role_is_distinguished_from_a_wrong_password(settings: Settings) -> None:
    """Postgres says the same of both; the superuser, where there is one, sees which roles there are."""
    with superuser() as connection:
        connection.execute("ALTER ROLE pulse_lake RENAME TO elsewhere")
    try:
        finding = wrong("postgres")["roles"]
        assert (finding.found, finding.fix) == (
            "pulse_lake: does not exist",
            "Let `pulse up` make the roles, with PULSE_POSTGRES__SUPERUSER and its password",
        )
        with with_settings(POSTGRES__SUPERUSER_PASSWORD=""):
            finding = wrong("postgres")["roles"]
        assert finding.found == "pulse_lake: password authentication failed for the user"
        assert "let `pulse up` make them" in str(finding.fix)
    finally:
        secret = sql.Literal(settings.postgres.role_passwords["pulse_lake"].get_secret_value())
        with superuser() as connection:
            connection.execute("ALTER ROLE elsewhere RENAME TO pulse_lake")
            connection.execute(sql.SQL("ALTER ROLE pulse_lake PASSWORD {}").format(secret))


def test_rights_on_topics_that_are_missing_come_with_the_command_that_grants_them(tenant: Owner) -> None:
    """The command's operations are all that the user then needs."""
    admin, info = kafka.admin(), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsert = UserScramCredentialUpsertion("shop", info, b"shop")
    settled(admin.alter_user_scram_credentials([upsert]))

    def grant(*operations: str) -> None:
        where = ResourceType.TOPIC, "pulse.", ResourcePatternType.PREFIXED, "User:shop", "*"
        allowed = (AclOperation[operation] for operation in operations)
        settled(
            admin.create_acls(
                [AclBinding(*where, operation, AclPermissionType.ALLOW) for operation in allowed]
            )
        )

    with with_settings(KAFKA__USERNAME="shop", KAFKA__PASSWORD="shop"):
        forget_connections()
        assert wrong("kafka")["rights"].found == "no topic may be created: Authorization failed"
        grant("CREATE", "DESCRIBE")
        (finding,) = wrong("kafka").values()
        assert "the user lacks DESCRIBE_CONFIGS, ALTER, READ, WRITE on pulse." in finding.found
        assert "--allow-principal User:shop" in str(finding.fix)
        named = re.findall(r"--operation (\w+)", str(finding.fix))
        grant(*(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper() for operation in named))
        assert wrong("kafka") == {}
    forget_connections()


def settled(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority that signs for nobody here."""
    return make(Layout(tmp_path_factory.mktemp("stranger")))


def test_a_client_without_a_certificate_is_reported(settings: Settings, stranger: Certificates) -> None:
    theirs = {
        "KAFKA__CERTIFICATE_FILE": stranger.certificate,
        "KAFKA__KEY_FILE": stranger.key,
        "POSTGRES__SSLCERT": stranger.certificate,
        "POSTGRES__SSLKEY": stranger.key,
    }
    with with_settings(**theirs):
        for service, setting in (
            ("kafka", "PULSE_KAFKA__CERTIFICATE_FILE"),
            ("postgres", "PULSE_POSTGRES__SSLCERT"),
        ):
            (finding,) = wrong(service).values()
            assert setting in (finding.fix or ""), finding
            assert re.search("certificate|unknown ca", finding.found), finding


@pytest.mark.slow
def test_certificates_that_have_expired_are_named(home: Path) -> None:
    clock = Clock.made()
    try:
        with clock.wrong_by(YEARS * 365.25 * 24):
            done = pulse("doctor", "--json", environment=clock.environment, check=False)
    finally:
        clock.remove()
    by_service = {
        result["service"]: result
        for result in json.loads(done.stdout)["findings"]
        if result["check"] == "tls"
    }
    assert set(by_service) == set(SERVICES)
    for finding in by_service.values():
        assert not finding["ok"]
        assert "has expired" in finding["found"]
        assert "Renew" in finding["fix"]


def temporary_credentials(settings: Settings) -> dict[str, str]:
    """Credentials of MinIO's security token service, asked as AWS's is, as settings."""
    store = settings.object_store
    secret, at = store.secret_key.get_secret_value(), datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    body = b"Action=AssumeRole&Version=2011-06-15&DurationSeconds=3600"
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": store.endpoint.removeprefix("https://"),
        "x-amz-date": at,
    }
    signed, scope = ";".join(headers), f"{at[:8]}/{store.region}/sts/aws4_request"
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join(["POST", "/", "", named, signed, hashlib.sha256(body).hexdigest()])
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    how = f"Credential={store.access_key}/{scope}, SignedHeaders={signed}, Signature={key.hex()}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 {how}"
    with httpx.Client(verify=ssl.create_default_context(cafile=store.ca_file), timeout=PATIENCE_S) as http:
        answer = http.post(f"{store.endpoint}/", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return {
        f"OBJECT_STORE__{name}": re.findall(f"<{tag}>(.*?)</{tag}>", answer.text)[0]
        for name, tag in (
            ("ACCESS_KEY", "AccessKeyId"),
            ("SECRET_KEY", "SecretAccessKey"),
            ("SESSION_TOKEN", "SessionToken"),
        )
    }
