"""Settings of the services that Pulse uses: addresses and credentials."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from pydantic import AfterValidator, BaseModel, Field, SecretStr

CATALOG = "pulse"
"""Name of the SQL catalog in the schema `iceberg_catalog`."""
Role = Literal["pulse_owner", "pulse_api", "pulse_pipeline", "pulse_catalog", "pulse_lake"]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("is not an absolute path, and Pulse's processes run in different folders")
    return path


File = Annotated[Path, AfterValidator(_absolute)]
"""File that all processes of Pulse read, also Spark's tasks: it must exist on all their machines."""
_quoted = partial(quote, safe="")
"""Quotes a part of a URL, as libpq, SQLAlchemy, yoyo and JDBC all decode it."""


_KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "tcp_user_timeout": "30000"}
"""libpq's, in seconds and milliseconds. Firewalls forget idle connections, and a client that listens on one,
such as for notifications of revoked keys, would wait for hours."""


class PostgresSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = Field(default=5432, ge=1, le=65_535)
    database: str = "pulse"
    dagster_database: str = "dagster"
    superuser: str = "postgres"
    superuser_password: SecretStr = SecretStr("")
    role_passwords: dict[Role, SecretStr] = Field(default_factory=dict)
    require_auth: str = "!password"
    """Authentication methods that clients accept, as libpq's `require_auth`: another program that takes the
    port while Postgres is away must not receive a password."""
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] | None = None
    """As libpq's. Default: `verify-full` if `sslrootcert` is set, otherwise `prefer`: encrypted if the server
    offers it, without verification."""
    sslrootcert: File | Literal["system"] | None = None
    """Authorities (PEM) that sign the server's certificate; `system`: the machine's trusted ones."""
    sslcert: File | None = None
    """Client certificate (PEM), if the server asks for one ..."""
    sslkey: File | None = None
    """... and its key (PEM, PKCS #8, without a password), readable only by its owner."""

    @property
    def tls(self) -> dict[str, str]:
        """libpq's TLS parameters that are set."""
        mode = self.sslmode or ("verify-full" if self.sslrootcert else None)
        parameters = {
            "sslmode": mode,
            "sslrootcert": self.sslrootcert,
            "sslcert": self.sslcert,
            "sslkey": self.sslkey,
        }
        return {name: str(value) for name, value in parameters.items() if value}

    @property
    def place(self) -> str:
        """Host and port as part of a URL."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def _url(self, user: str, password: SecretStr | None, database: str, driver: str = "") -> str:
        scheme = f"postgresql+{driver}" if driver else "postgresql"
        secret = f":{_quoted(password.get_secret_value())}" if password else ""
        parameters = {"require_auth": self.require_auth} if self.require_auth else {}
        parameters |= _KEEPALIVE | self.tls
        query = "&".join(f"{name}={_quoted(value)}" for name, value in parameters.items())
        return f"{scheme}://{_quoted(user)}{secret}@{self.place}/{_quoted(database)}?{query}"

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
    """Authorities (PEM) that sign brokers' certificates; default: the machine's trusted ones."""
    certificate_file: File | None = None
    """Client certificate (PEM), if brokers ask for one ..."""
    key_file: File | None = None
    """... its key (PEM) ..."""
    key_password: SecretStr | None = None
    """... and its password, if any."""
    partitions_per_topic: int = Field(default=2, ge=1)
    replication_factor: int = Field(default=1, ge=1)

    @property
    def encrypted(self) -> bool:
        """Whether clients use TLS."""
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether clients authenticate with user and password."""
        return self.security_protocol.startswith("SASL")

    def client(self) -> dict[str, Any]:
        """Connection settings of any librdkafka client; holds secrets, never log it."""
        properties: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
        }
        if self.sasl:
            properties |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password.get_secret_value(),
            }
        if self.encrypted:
            secret = self.key_password.get_secret_value() if self.key_password else None
            tls_properties = {
                "ssl.ca.location": self.ca_file,
                "ssl.certificate.location": self.certificate_file,
                "ssl.key.location": self.key_file,
                "ssl.key.password": secret,
            }
            properties |= {name: str(value) for name, value in tls_properties.items() if value}
        return properties


class ObjectStoreSettings(BaseModel):
    endpoint: str = "http://127.0.0.1:9000"
    bucket: str = "pulse"
    region: str = "us-east-1"
    access_key: str = "pulse"
    secret_key: SecretStr = SecretStr("")
    """Empty: the key is that of the environment (AWS_ACCESS_KEY_ID, a container's or an instance's role)."""
    session_token: SecretStr | None = None
    """Session token of temporary credentials; an installation must be restarted with new ones."""
    ca_file: File | None = None
    """Authorities (PEM) that sign its certificate; default: the machine's trusted ones."""
    vending_access_key: str = "pulse-vending"
    """Account that requests short-lived credentials for a single table ..."""
    vending_secret_key: SecretStr | None = None
    """... and its secret; without it no such credentials are issued."""
    vending_by_tenant: bool = False
    """Whether each tenant's keys are issued to an account of its own, which Pulse makes with MinIO's root
    key. Otherwise, on MinIO, the holder of a key can revoke those of all tenants."""
    vending_role: str = "arn:aws:iam::000000000000:role/pulse"
    """Role that it assumes; MinIO accepts any."""
    vended_seconds: int = Field(default=900, ge=900, le=43_200)
    """Lifetime of such credentials; readers get ones with at least a third of it left."""
    sts_endpoint: str | None = None
    """STS endpoint; default: `endpoint`, as with MinIO."""
    public_endpoint: str | None = None
    """Endpoint for tenants' engines, if it differs from `endpoint`."""

    @property
    def by_role(self) -> bool:
        """Whether the environment has the key, and not the settings."""
        return not self.secret_key.get_secret_value()

    @property
    def linked_endpoint(self) -> str:
        """Endpoint that tenants' engines are given."""
        return self.public_endpoint or self.endpoint


class SparkSettings(BaseModel):
    remote: str = "sc://127.0.0.1:15002"
    """Spark Connect address, with parameters as pyspark takes them: `sc://host:port/;use_ssl=true`."""
    token: SecretStr | None = None
    """Token by which clients authenticate (the server's `spark.connect.authenticate.token`, or a proxy's)."""
    parallelism: int = Field(default=os.cpu_count() or 2, ge=1)
    """Task slots used by one ingest batch: those of the whole cluster."""
    task_memory_mb: int = Field(default=4_096, ge=2_048)
    """Memory limit of a task's process; Arrow reserves more than a gigabyte of it at its start. An event that
    needs more becomes a dead letter (`processing_failed`), without ending the executor or other tasks."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the remote, which may carry parameters: `sc://host:port/;use_ssl=true`."""
        host, _, port = self.remote.removeprefix("sc://").split("/")[0].partition(":")
        return host, int(port or 15002)

    @property
    def place(self) -> str:
        """The remote without its secrets."""
        host, port = self.address
        return f"sc://{host}:{port}"

    @property
    def bearer(self) -> str | None:
        """The token, from its own setting or from a header of the remote."""
        if self.token:
            return self.token.get_secret_value()
        match = re.search(r"[/;]authorization=Bearer%20([^;]+)", self.remote)
        return unquote(match[1]) if match else None

    def url(self, session_id: str | None = None) -> str:
        """URL for pyspark's client; holds a secret, never log it.

        Without TLS the token is a header: pyspark sends its parameter `token` only over TLS or to localhost.

        Args:
            session_id: session to enter; None: a new one.
        """
        named = re.sub(r";?session_id=[^;]*", "", self.remote).rstrip("/;")
        parameters = named.partition("/;")[2] if "/;" in named else ""
        texts = [parameters] if parameters else []
        if self.token:
            name = "token=" if re.search(r"(^|;)use_ssl=true", parameters) else "authorization=Bearer%20"
            texts.append(f"{name}{_quoted(self.token.get_secret_value())}")
        if session_id:
            texts.append(f"session_id={session_id}")
        return f"{self.place}/;{';'.join(texts)}"

    @property
    def session_id(self) -> str | None:
        """Session that the remote names for all runs; None: it names none."""
        match = re.search(r"[/;]session_id=([^;]+)", self.remote)
        return match[1] if match else None
