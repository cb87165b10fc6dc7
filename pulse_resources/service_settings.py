"""Settings of the services that Pulse stands on: where they are, and by which secrets they open."""

import os
import re
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field, SecretStr

Role = Literal["pulse_owner", "pulse_api", "pulse_pipeline", "pulse_catalog"]


class PostgresSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = 5432
    database: str = "pulse"
    dagster_database: str = "dagster"
    superuser: str = "postgres"
    superuser_password: SecretStr = SecretStr("")
    role_passwords: dict[Role, SecretStr] = Field(default_factory=dict)
    require_auth: str = "!password"
    """Ways in which clients let a server ask who they are, as libpq's `require_auth`: whoever answers at the
    port while Postgres is away must not be told a password."""

    def _url(self, user: str, password: SecretStr | None, database: str) -> str:
        secret = f":{password.get_secret_value()}" if password else ""
        asked = f"?require_auth={quote(self.require_auth)}" if self.require_auth else ""
        return f"postgresql://{user}{secret}@{self.host}:{self.port}/{database}{asked}"

    def url(self, role: Role) -> str:
        """Connection URL of `role` on Pulse's database; holds a secret, never log it."""
        return self._url(role, self.role_passwords.get(role), self.database)

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
    partitions_per_topic: int = Field(default=2, ge=1)
    replication_factor: int = Field(default=1, ge=1)

    def client(self) -> dict[str, Any]:
        """How any of librdkafka's clients reaches the broker; holds a secret, never log it."""
        where = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if not self.security_protocol.startswith("SASL"):
            return where
        return where | {
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password.get_secret_value(),
        }


class ObjectStoreSettings(BaseModel):
    endpoint: str = "http://127.0.0.1:9000"
    bucket: str = "pulse"
    region: str = "us-east-1"
    access_key: str = "pulse"
    secret_key: SecretStr = SecretStr("")


class SparkSettings(BaseModel):
    remote: str = "sc://127.0.0.1:15002"
    """Spark Connect address, with its secrets; a cluster's address works the same way."""
    parallelism: int = Field(default=os.cpu_count() or 2, ge=1)
    """Task slots that one ingest batch spreads over."""
    task_memory_mb: int = Field(default=4_096, ge=2_048)
    """What the process of a task may allocate; Arrow reserves more than a gigabyte of it at its start. An
    event that needs more becomes a dead letter (`processing_failed`), and ends neither the executor nor its
    neighbours."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the remote, which may carry parameters: `sc://host:port/;token=...`."""
        host, _, port = self.remote.removeprefix("sc://").split("/")[0].partition(":")
        return host, int(port or 15002)

    @property
    def place(self) -> str:
        """Where the remote is, without its secrets."""
        host, port = self.address
        return f"sc://{host}:{port}"

    @property
    def token(self) -> str | None:
        """The token that the remote's header `authorization` carries.

        A header, because pyspark sends its parameter `token` by TLS alone, but to `localhost`.
        """
        given = re.search(r"[/;]authorization=Bearer%20([^;]+)", self.remote)
        return given[1] if given else None
