"""Settings of the services that Pulse stands on: where they are, and by which secrets they open."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BaseModel, Field, SecretStr

Role = Literal["pulse_owner", "pulse_api", "pulse_pipeline", "pulse_catalog", "pulse_lake"]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("is not an absolute path, and Pulse's processes run in different folders")
    return path


File = Annotated[Path, AfterValidator(_absolute)]
"""A file that all processes of Pulse read, Spark's tasks too: it is there on all their machines."""
_quoted = partial(quote, safe="")
"""A part of a URL, whatever is in it, as libpq, SQLAlchemy, yoyo and JDBC all decode it."""


class PostgresSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = Field(default=5432, ge=1, le=65_535)
    database: str = "pulse"
    dagster_database: str = "dagster"
    superuser: str = "postgres"
    superuser_password: SecretStr = SecretStr("")
    role_passwords: dict[Role, SecretStr] = Field(default_factory=dict)
    require_auth: str = "!password"
    """Ways in which clients let a server ask who they are, as libpq's `require_auth`: whoever answers at the
    port while Postgres is away must not be told a password."""
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = None
    """As libpq's. By default `verify-full` once `sslrootcert` is given; without it `prefer`: encrypted where
    the server offers that, whoever it is."""
    sslrootcert: File | Literal["system"] | None = None
    """Authorities (PEM) that sign the server's certificate; `system`: those that the machine trusts."""
    sslcert: File | None = None
    """Certificate (PEM) that clients present, where the server asks for one ..."""
    sslkey: File | None = None
    """... and its key (PEM, PKCS #8, without a password), which only its owner may read."""

    @property
    def tls(self) -> dict[str, str]:
        """libpq's parameters for TLS, as far as there are any."""
        mode = self.sslmode or ("verify-full" if self.sslrootcert else None)
        given = {
            "sslmode": mode,
            "sslrootcert": self.sslrootcert,
            "sslcert": self.sslcert,
            "sslkey": self.sslkey,
        }
        return {name: str(value) for name, value in given.items() if value}

    @property
    def place(self) -> str:
        """Host and port as a part of a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def _url(self, user: str, password: SecretStr | None, database: str, driver: str = "") -> str:
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        secret = f":{_quoted(password.get_secret_value())}" if password else ""
        parameters = {"require_auth": self.require_auth} if self.require_auth else {}
        query = "&".join(f"{name}={_quoted(value)}" for name, value in (parameters | self.tls).items())
        where = f"{self.place}/{_quoted(database)}" + (f"?{query}" if query else "")
        return f"{scheme}://{_quoted(user)}{secret}@{where}"

    def url(self, role: Role, driver: str = "") -> str:
        """Connection URL of `role` on Pulse's database; holds a secret, never log it.

        Args:
            driver: as SQLAlchemy and yoyo name it in the scheme; none: a URL of libpq.
        """
        return self._url(role, self.role_passwords.get(role), self.database, driver)

    def dagster_url(self) -> str:
        """Connection URL of Dagster's own database; holds a secret, never log it."""
        return self._url("pulse_owner", self.role_passwords.get("pulse_owner"), self.dagster_database)

    def superuser_url(self, database: str = "postgres") -> str:
        """Connection URL of the superuser, used only to create roles and databases."""
        return self._url(self.superuser, self.superuser_password, database)


class KafkaSettings(BaseModel):
    bootstrap_servers: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str = "pulse"
    password: SecretStr = SecretStr("")
    ca_file: File | None = None
    """Authorities (PEM) that sign brokers' certificates; by default those that the machine trusts."""
    certificate_file: File | None = None
    """Certificate (PEM) that clients present, where brokers ask for one ..."""
    key_file: File | None = None
    """... its key (PEM) ..."""
    key_password: SecretStr | None = None
    """... and the password of that, where it has one."""
    partitions_per_topic: int = Field(default=2, ge=1)
    replication_factor: int = Field(default=1, ge=1)

    @property
    def encrypted(self) -> bool:
        """Whether clients speak TLS."""
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients sign in with a user and a password."""
        return self.security_protocol.startswith("SASL")

    def client(self) -> dict[str, Any]:
        """How any of librdkafka's clients reaches the broker; holds secrets, never log it."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.sasl:
            found |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password.get_secret_value(),
            }
        if self.encrypted:
            secret = self.key_password.get_secret_value() if self.key_password else None
            given = {
                "ssl.ca.location": self.ca_file,
                "ssl.certificate.location": self.certificate_file,
                "ssl.key.location": self.key_file,
                "ssl.key.password": secret,
            }
            found |= {name: str(value) for name, value in given.items() if value}
        return found


class ObjectStoreSettings(BaseModel):
    endpoint: str = "http://127.0.0.1:9000"
    bucket: str = "pulse"
    region: str = "us-east-1"
    access_key: str = "pulse"
    secret_key: SecretStr = SecretStr("")
    """Empty: the key is that of the environment (AWS_ACCESS_KEY_ID, a container's or an instance's role)."""
    session_token: SecretStr | None = None
    """Of temporary credentials; an installation that gets new ones is started anew with them."""
    ca_file: File | None = None
    """Authorities (PEM) that sign its certificate; by default those that the machine trusts."""
    vending_access_key: str = "pulse-vending"
    """The account that asks for short-lived credentials which open one table, say ..."""
    vending_secret_key: SecretStr | None = None
    """... and its secret; without it there are no such credentials."""
    vending_role: str = "arn:aws:iam::000000000000:role/pulse"
    """The role that it assumes; MinIO takes any."""
    vended_seconds: int = Field(default=900, ge=900, le=43_200)
    """How long such credentials are valid; a reader gets one with a third of that left, or more."""
    sts_endpoint: str | None = None
    """Where they are asked for; by default at `endpoint`, as MinIO has it."""
    public_endpoint: str | None = None
    """Where tenants' engines reach the store, where that is not `endpoint`."""

    @property
    def by_role(self) -> bool:
        """Whether the environment has the key, and not the settings."""
        return not self.secret_key.get_secret_value()

    @property
    def linked_endpoint(self) -> str:
        """The address that tenants' engines are told."""
        return self.public_endpoint or self.endpoint


class SparkSettings(BaseModel):
    remote: str = "sc://127.0.0.1:15002"
    """Spark Connect address, with parameters as pyspark takes them: `sc://host:port/;use_ssl=true`."""
    token: SecretStr | None = None
    """With which clients sign in (the server's `spark.connect.authenticate.token`, or that of a proxy)."""
    parallelism: int = Field(default=os.cpu_count() or 2, ge=1)
    """Task slots that one ingest batch spreads over: those of the whole cluster."""
    task_memory_mb: int = Field(default=4_096, ge=2_048)
    """What the process of a task may allocate; Arrow reserves more than a gigabyte of it at its start. An
    event that needs more becomes a dead letter (`processing_failed`), and ends neither the executor nor its
    neighbours."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the remote, which may carry parameters: `sc://host:port/;use_ssl=true`."""
        host, _, port = self.remote.removeprefix("sc://").split("/")[0].partition(":")
        return host, int(port or 15002)

    @property
    def place(self) -> str:
        """Where the remote is, without its secrets."""
        host, port = self.address
        return f"sc://{host}:{port}"

    @property
    def bearer(self) -> str | None:
        """The token, whether it is a setting of its own or a header of the remote."""
        if self.token:
            return self.token.get_secret_value()
        given = re.search(r"[/;]authorization=Bearer%20([^;]+)", self.remote)
        return unquote(given[1]) if given else None

    def url(self, session_id: str | None = None) -> str:
        """What pyspark's client connects to; holds a secret, never log it.

        Without TLS the token is a header: pyspark sends its parameter `token` by TLS alone, but to localhost.

        Args:
            session_id: of the session to enter; None: a new one.
        """
        named = re.sub(r";?session_id=[^;]*", "", self.remote).rstrip("/;")
        parameters = named.partition("/;")[2] if "/;" in named else ""
        given = [parameters] if parameters else []
        if self.token:
            name = "token=" if re.search(r"(^|;)use_ssl=true", parameters) else "authorization=Bearer%20"
            given.append(f"{name}{_quoted(self.token.get_secret_value())}")
        if session_id:
            given.append(f"session_id={session_id}")
        return f"{self.place}/;{';'.join(given)}"

    @property
    def session_id(self) -> str | None:
        """The session that the remote names for all runs, if it names one."""
        given = re.search(r"[/;]session_id=([^;]+)", self.remote)
        return given[1] if given else None
