"""Settings of the services that Pulse stands on: where they are, and by which secrets they open."""

import os
from typing import Literal

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

    def _url(self, user: str, password: SecretStr | None, database: str) -> str:
        secret = f":{password.get_secret_value()}" if password else ""
        return f"postgresql://{user}{secret}@{self.host}:{self.port}/{database}"

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
    partitions_per_topic: int = Field(default=2, ge=1)
    replication_factor: int = Field(default=1, ge=1)


class ObjectStoreSettings(BaseModel):
    endpoint: str = "http://127.0.0.1:9000"
    bucket: str = "pulse"
    region: str = "us-east-1"
    access_key: str = "pulse"
    secret_key: SecretStr = SecretStr("")


class SparkSettings(BaseModel):
    remote: str = "sc://127.0.0.1:15002"
    """Spark Connect address; a cluster's address works the same way."""
    parallelism: int = Field(default=os.cpu_count() or 2, ge=1)
    """Task slots that one ingest batch spreads over."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the remote, which may carry parameters: `sc://host:port/;token=...`."""
        host, _, port = self.remote.removeprefix("sc://").split("/")[0].partition(":")
        return host, int(port or 15002)
