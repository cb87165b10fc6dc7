"""Every setting of Pulse, in one place.

Sources, strongest first: environment variables (`PULSE_KAFKA__BOOTSTRAP_SERVERS=...`), then
`$PULSE_HOME/settings.json` (written by `pulse up` with the addresses and generated passwords of the
services it started), then the defaults below.
"""

import os
from datetime import date
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

Role = Literal["pulse_owner", "pulse_api", "pulse_pipeline", "pulse_catalog"]


def pulse_home() -> Path:
    """The one folder that holds all state of this installation (default `./.pulse`)."""
    return Path(os.environ.get("PULSE_HOME", ".pulse")).absolute()


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


class DagsterSettings(BaseModel):
    partition_days: int = Field(default=400, ge=1)
    """Days back that the grid of the dataset assets has at least; it begins with a month, so that it moves
    once a month. Earlier events land, too, without a cell."""
    partitions_start: date | None = None
    """A later first day of the grid, such as when the installation began."""
    owners: list[str] = Field(default_factory=lambda: ["team:platform"])
    """Owners of the dataset assets: e-mail addresses, or `team:` and a name."""
    host: str = "127.0.0.1"
    webserver_port: int = 3000
    code_server_port: int = 4000


class IngestSettings(BaseModel):
    flush_rows: int = Field(default=10_000, ge=1)
    """A topic is due at this many pending events ..."""
    flush_seconds: float = Field(default=30.0, gt=0)
    """... or this many seconds after its first pending event was seen."""
    batch_max_rows: int = Field(default=1_000_000, ge=1)
    """Most events one batch takes, over all its topics."""
    max_attempts: int = Field(default=5, ge=1)
    retry_backoff_seconds: float = Field(default=5.0, ge=0)
    """Wait before attempt n+1: this times 2^(n-1)."""
    max_event_bytes: int = Field(default=262_144, ge=1_024)
    max_event_depth: int = Field(default=64, ge=2, le=200)
    chunk_rows: int = Field(default=20_000, ge=1)
    """Events decoded at a time in one task."""
    buffer_bytes: int = Field(default=128 * 1024 * 1024, ge=1_048_576)
    """Bytes of conformed rows (and, apart, of raw events) one task holds before it writes files."""


class ApiSettings(BaseModel):
    host: str = "127.0.0.1"
    port: int = 8000
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call the API; none by default."""
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1_024)
    """Of a request, also after decompression."""
    max_events: int = Field(default=10_000, ge=1)
    """Of one collect request."""
    delivery_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long the broker may take to acknowledge before the answer is 503."""
    max_unacknowledged_events: int = Field(default=100_000, ge=1)
    """Events in flight to the broker; more are answered with 503 and Retry-After."""
    cache_seconds: float = Field(default=30.0, ge=0)
    """How long keys, schemas and limits are kept if no change is announced."""
    access_log: bool = True
    """A line per request on standard output, without payloads and keys."""
    open_metrics: bool = False
    """Whether /metrics, which names tenants, may be read without an operator's key."""
    preview_seconds: float = Field(default=10.0, gt=0)
    """Time limit of one preview."""
    preview_memory: str = "512MB"
    """Memory limit of one preview."""
    preview_parallelism: int = Field(default=2, ge=1)
    """Previews that run at a time."""


class LimitSettings(BaseModel):
    """Limits of a tenant that has none of its own: positive a maximum, -1 unlimited.

    Quotas hold however many API processes there are; rates are per process.
    """

    max_datasets: int = -1
    max_records_per_month: int = -1
    requests_per_second: float = -1
    events_per_second: float = -1


class Settings(BaseSettings):
    """All settings; load with `load_settings()`."""

    model_config = SettingsConfigDict(
        env_prefix="PULSE_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    postgres: PostgresSettings = PostgresSettings()
    kafka: KafkaSettings = KafkaSettings()
    object_store: ObjectStoreSettings = ObjectStoreSettings()
    spark: SparkSettings = SparkSettings()
    dagster: DagsterSettings = DagsterSettings()
    ingest: IngestSettings = IngestSettings()
    api: ApiSettings = ApiSettings()
    limits: LimitSettings = LimitSettings()

    @property
    def home(self) -> Path:
        return pulse_home()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = JsonConfigSettingsSource(settings_cls, json_file=pulse_home() / "settings.json")
        return init_settings, env_settings, file


@cache
def load_settings() -> Settings:
    """The settings of this process, read once (`load_settings.cache_clear()` reads them again)."""
    return Settings()
