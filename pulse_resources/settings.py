"""Every setting of Pulse, in one place.

Sources, strongest first: environment variables (`PULSE_KAFKA__PARTITIONS_PER_TOPIC=...`), `settings.json` in
PULSE_HOME (by `pulse up`: addresses and passwords of the services that it started), the defaults below.
"""

import hashlib
import os
import tempfile
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pulse_resources.api_settings import ApiSettings, AskSettings, DagsterSettings, LakeSettings, SqlSettings
from pulse_resources.errors import UserError
from pulse_resources.home import in_file, pulse_home
from pulse_resources.service_settings import (
    KafkaSettings,
    ObjectStoreSettings,
    PostgresSettings,
    SparkSettings,
)
from pulse_resources.setting_names import explained, misspelt, not_json, unknown

_LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path, by the kernel."""


class IngestSettings(BaseModel):
    flush_rows: int = Field(default=10_000, ge=1)
    """A topic is due at this many pending events ..."""
    flush_seconds: float = Field(default=30.0, gt=0)
    """... or this many seconds after its first pending event was seen."""
    batch_max_rows: int = Field(default=1_000_000, ge=1, le=4_000_000)
    """Most events one batch takes, over all its topics. A task gives back 24 bytes of each."""
    max_attempts: int = Field(default=5, ge=1)
    """After so many a batch is stuck: an alert, and from then on ..."""
    stuck_retry_seconds: float = Field(default=120.0, gt=0)
    """... another attempt this long after the last, until it settles: an outage ends without a person."""
    attempt_seconds: float = Field(default=900.0, gt=0)
    """Longer than any attempt takes that does not hang: then it is killed, and the next one follows."""
    retry_backoff_seconds: float = Field(default=5.0, ge=0)
    """Wait before attempt n+1, before it is stuck: this times 2^(n-1)."""
    max_event_bytes: int = Field(default=262_144, ge=1_024)
    max_event_depth: int = Field(default=64, ge=2, le=200)
    max_schema_seconds: float = Field(default=10.0, gt=0)
    """A schema is refused by which judging an event of `max_event_bytes` could take longer, whatever the
    event: a bound for the worst one that anybody could make, thousands of times what others take."""
    judge_seconds: float = Field(default=1.0, gt=0)
    """CPU time after which judging an event is ended, and the event is `too_expensive`."""
    judge_memory_bytes: int = Field(default=256 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory that a process which judges events may take; an event that takes it there is `too_expensive`."""
    judge_batch_seconds: float = Field(default=10.0, gt=0)
    """CPU time that judging a tenant's events may take in each task of a batch, and in a replay, beyond their
    share of 100 ns a byte; then those of the rest that may take long are `too_expensive`, too."""
    judge_workers: int = Field(default=2, ge=1)
    """Processes that judge events which may take long; started when there are any."""
    earliest_timestamp: AwareDatetime = datetime(1970, 1, 1, tzinfo=UTC)
    """An event's timestamp is this or later, and ..."""
    timestamp_ahead_seconds: float = Field(default=86_400.0, ge=0, le=4e11)
    """... at most so long after the broker appended the event, by the broker's clock."""
    chunk_rows: int = Field(default=5_000, ge=1)
    """Events decoded at a time in one task."""
    buffer_bytes: int = Field(default=128 * 1024 * 1024, ge=1_048_576)
    """Bytes of conformed rows (and, apart, of raw events) one task holds before it writes files."""
    claim_files_mb: int = Field(default=4096, ge=0)
    """Room on this machine for the claimed ids of large datasets, 16 bytes each, to spare fetching them."""

    @property
    def look_seconds(self) -> int:
        """How often the lag is looked at: a sixth of `flush_seconds`, from 1 to 5."""
        return max(1, min(5, int(self.flush_seconds / 6)))


class CheckSettings(BaseModel):
    """When the asset checks fail, and how much the check of the whole lake does at a time."""

    late_seconds: float = Field(default=300.0, gt=0)
    """`freshness` warns when a tenant's oldest event that is not settled waits longer ..."""
    very_late_seconds: float = Field(default=3600.0, gt=0)
    """... and fails at this."""
    small_file_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """`file_health` counts files below this; its limits are what upkeep should never let a table come to."""
    max_small_files_per_day: int = Field(default=300, ge=1)
    max_snapshots: int = Field(default=2_000, ge=1)
    max_manifests: int = Field(default=300, ge=1)
    max_files: int = Field(default=200, ge=2)
    """Files of a table whose rows the scheduled check reads: half of them the newest, half any others."""
    budget_seconds: float = Field(default=600.0, gt=0)
    """Of one scheduled run; what it does not get to is first in the next."""


class UpkeepSettings(BaseModel):
    """When tables are compacted, how long history, raw objects and claims are kept, and how much a run does.

    Time travel promises: a snapshot stays readable for `history_hours`, unless more than
    `history_snapshots` commits came after it; the last `history_minimum` always do.
    """

    merge_files: int = Field(default=16, ge=2)
    """Files of a day that landed since its last compaction, when they are merged (L1) ..."""
    merge_minutes: float = Field(default=60.0, ge=0)
    """... if that was this long ago, or ..."""
    merge_hurry: int = Field(default=10, ge=1)
    """... at once where there are so many times as many."""
    merge_target_mb: int = Field(default=128, ge=1)
    merged_mb: int = Field(default=16, ge=1)
    """Merging takes files below this only, so that it does not write the same rows again and again."""
    quiet_hours: float = Field(default=6.0, ge=0)
    """A day in which nothing landed for this long is sorted (L2)."""
    target_mb: int = Field(default=512, ge=1)
    """Size of the files of a sorted day."""
    sort_single_mb: int = Field(default=32, ge=1)
    """A day that is one file is sorted from this size on."""
    group_mb: int = Field(default=1024, ge=1)
    """What one rewrite sorts at a time; of a larger day each part is a commit of its own."""
    manifests: int = Field(default=100, ge=2)
    """A table with more manifests has them rewritten."""
    history_hours: float = Field(default=24.0, ge=0)
    history_snapshots: int = Field(default=300, ge=1)
    """Each is 0.7 kB that every commit to the table reads and writes again."""
    history_minimum: int = Field(default=10, ge=1)
    expire_batch: int = Field(default=25, ge=1)
    """Snapshots beyond `history_snapshots` that pile up before they are expired."""
    sweep_hours: float = Field(default=24.0, ge=0)
    """How often a table's folder, and the raw zone, are searched for orphans."""
    orphan_hours: float = Field(default=24.0, ge=0)
    """An orphan younger than this stays, by the object store's clock: a second safety, never the first."""
    raw_days: int = Field(default=-1, ge=-1)
    """Raw objects are kept this long after their batch settled; -1: for ever. Backfills need them."""
    claim_days: int = Field(default=-1, ge=-1)
    """Event ids are remembered this long; -1: for ever. An event sent again later lands again."""
    run_seconds: float = Field(default=600.0, gt=0)
    """A run begins nothing new after this."""
    retry_minutes: float = Field(default=15.0, ge=0)
    """Wait before a task that failed is tried again: then twice as long each time, up to ..."""
    retry_max_minutes: float = Field(default=360.0, ge=0)
    """... this."""


class LimitSettings(BaseModel):
    """Limits of a tenant that has none of its own: positive a maximum, -1 unlimited.

    Quotas and rates hold however many API processes there are, quotas whichever way events come. By default
    rates are beyond what a busy tenant sends (they end what runs wild), and there is no quota.
    """

    max_datasets: int = -1
    max_records_per_month: int = -1
    """Both of events."""
    requests_per_second: float = 5_000
    events_per_second: float = 100_000
    max_entity_datasets: int = -1


class CuratedSettings(BaseModel):
    rollups_dir: Path = Path(__file__).parent.parent / "rollups"
    """Folder of the teams' own rollups: SQL files with a declared grain."""
    session_gap_minutes: float = Field(default=30.0, gt=0)
    """An actor's next event begins a new session when it comes later than this."""
    quiet_seconds: float = Field(default=60.0, ge=0)
    """A day is computed when it has not changed for this long ..."""
    max_wait_seconds: float = Field(default=600.0, ge=0)
    """... or when a change has waited this long."""
    retry_seconds: float = Field(default=60.0, ge=0)
    """Wait after a run that failed, and before a day that failed is tried again: then twice as long each
    time, up to ..."""
    retry_max_seconds: float = Field(default=900.0, ge=0)
    """... this."""
    days_per_run: int = Field(default=500, ge=1)
    """Most (tenant, dataset, day) that one run takes, those that changed last first."""
    max_rows: int = Field(default=1_000, ge=1)
    """Rows that a team's rollup may have per day: they are served as one small row."""


class AlertSettings(BaseModel):
    notifiers: list[str] = Field(default_factory=lambda: ["log"])
    """Who is told: `log`, `webhook`, or a class of your own as `package.module:Class`."""
    webhook_url: SecretStr | None = None
    webhook_timeout_seconds: float = Field(default=5.0, gt=0)
    webhook_attempts: int = Field(default=3, ge=1, le=10)
    """In a row; what is not delivered then is tried again at the next look, half a minute later."""
    repeat_seconds: float = Field(default=3_600.0, gt=0)
    """What goes on is told again after this long."""
    stale_seconds: float = Field(default=300.0, gt=0)
    """A tenant whose oldest event that is not settled has waited this long is stale."""
    outbox_seconds: float = Field(default=300.0, gt=0)
    """Dead letters that are not on their topic this long after they settled are overdue."""
    failed_run_hours: float = Field(default=24.0, gt=0)
    """A failed run that nobody repeated is an alert for this long."""
    keep_days: float = Field(default=90.0, gt=0)
    """Resolved alerts are kept this long."""


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
    lake: LakeSettings = LakeSettings()
    sql: SqlSettings = SqlSettings()
    ask: AskSettings = AskSettings()
    checks: CheckSettings = CheckSettings()
    limits: LimitSettings = LimitSettings()
    upkeep: UpkeepSettings = UpkeepSettings()
    alerts: AlertSettings = AlertSettings()
    curated: CuratedSettings = CuratedSettings()

    @property
    def home(self) -> Path:
        return pulse_home()

    @property
    def code_server_socket(self) -> Path:
        """Where Dagster's code server listens, in a folder that only its owner may enter."""
        path = self.home / "dagster-code" / "socket"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET:
            return path
        key = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"pulse-{os.getuid()}-{key}" / "socket"

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


_given: list[Settings] = []


def give(settings: Settings) -> bool:
    """Have this process go by these settings and no other; whether they differ from those that it had.

    For Spark's tasks: whatever is in their environment is not the run's.
    """
    if _given == [settings]:
        return False
    _given[:] = [settings]
    load_settings.cache_clear()
    return True


@cache
def load_settings() -> Settings:
    """The settings of this process, read once (`load_settings.cache_clear()` reads them again).

    Raises:
        UserError: one of them is wrong, or one that the environment or the file sets is none.
    """
    if _given:
        return _given[0]
    file = pulse_home() / "settings.json"
    for name, fix in misspelt(Settings.model_fields):
        raise UserError(f"{name} is not a setting", fix=fix or "Unset it; `pulse config` shows all of them")
    try:
        for name, fix in unknown(Settings.model_fields, in_file()):
            raise UserError(
                f"{name} in {file} is not a setting",
                fix=f"{fix or 'Remove it.'} Or run `pulse up`: it writes the file anew",
            )
        return Settings()
    except ValidationError as error:  # not as the cause: it holds values, secrets among them
        raise UserError(f"a setting is wrong: {explained(error)}") from None
    except SettingsError as error:
        wrong = not_json(str(error))
        raise UserError(f"a setting is wrong: {wrong}", fix='Lists and mappings are JSON: ["log"]') from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}", fix="Repair it, or run `pulse up`") from error
