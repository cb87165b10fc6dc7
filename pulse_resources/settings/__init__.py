"""Settings of Pulse.

Sources, strongest first: environment variables (`PULSE_KAFKA__PARTITIONS_PER_TOPIC=...`), `settings.json` in
PULSE_HOME (by `pulse up`: addresses and passwords of the services that it started), the defaults below.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pulse_resources.errors import UserError
from pulse_resources.home import code_server_socket, in_file, pulse_home
from pulse_resources.resettable import Resettable
from pulse_resources.settings.alert_settings import AlertSettings
from pulse_resources.settings.api_settings import (
    ApiSettings,
    AskSettings,
    DagsterSettings,
    LakeSettings,
    SqlSettings,
)
from pulse_resources.settings.pipe_settings import PipeSettings
from pulse_resources.settings.service_settings import (
    KafkaSettings,
    ObjectStoreSettings,
    PostgresSettings,
    SparkSettings,
)
from pulse_resources.settings.setting_names import explained, misspelt, not_json, unknown


class IngestSettings(BaseModel):
    flush_rows: int = Field(default=10_000, ge=1)
    """A topic is due at this many pending events ..."""
    flush_seconds: float = Field(default=30.0, gt=0)
    """... or this many seconds after its first pending event was seen."""
    batch_max_rows: int = Field(default=1_000_000, ge=1, le=4_000_000)
    """Maximum events of a batch, over all its topics. A task returns 24 bytes for each."""
    max_attempts: int = Field(default=5, ge=1)
    """Attempts after which a batch is stuck: an alert, and from then on ..."""
    stuck_retry_seconds: float = Field(default=120.0, gt=0)
    """... attempts at this interval until it settles: an outage ends without an operator."""
    attempt_seconds: float = Field(default=900.0, gt=0)
    """Longer than any attempt at a batch that does not hang: then it is killed, and the next one follows,
    which has as many times longer as there were attempts, up to five.
    The same holds for an attempt at a move to another schema that writes no file for as long."""
    retry_backoff_seconds: float = Field(default=5.0, ge=0)
    """Wait before attempt n+1 while not stuck: this times 2^(n-1)."""
    max_event_bytes: int = Field(default=262_144, ge=1_024)
    max_event_depth: int = Field(default=64, ge=2, le=200)
    max_schema_seconds: float = Field(default=10.0, gt=0)
    """A schema is refused if validating some event of `max_event_bytes` could take longer. The bound is for
    the worst possible event, which takes thousands of times as long as usual ones."""
    max_tenant_schema_bytes: int = Field(default=8 * 1024 * 1024, ge=1_048_576)
    """Bytes of the schemas of a tenant's datasets: documents of the versions that each follows or followed,
    and its table's schema, of 80 bytes a column. 1,000 datasets of 50 columns have 7 MB."""
    judge_seconds: float = Field(default=1.0, gt=0)
    """CPU time after which the validation of an event is ended; the event is `too_expensive`."""
    judge_memory_bytes: int = Field(default=256 * 1024 * 1024, ge=64 * 1024 * 1024)
    """Memory limit of a validating process; an event that exceeds it is `too_expensive`."""
    judge_batch_seconds: float = Field(default=10.0, gt=0)
    """CPU time for validating a tenant's events in each task of a batch, and in a replay, beyond their share
    of 100 ns a byte; after that the rest of those that may take long are `too_expensive`, too."""
    judge_workers: int = Field(default=2, ge=1)
    """Processes that validate events which may take long; started when there are any."""
    earliest_timestamp: AwareDatetime = datetime(1970, 1, 1, tzinfo=UTC)
    """Earliest valid timestamp of an event; the latest is ..."""
    timestamp_ahead_seconds: float = Field(default=86_400.0, ge=0, le=4e11)
    """... this long after the broker appended the event, by the broker's clock."""
    chunk_rows: int = Field(default=5_000, ge=1)
    """Events decoded at a time in one task."""
    buffer_bytes: int = Field(default=128 * 1024 * 1024, ge=1_048_576)
    """Bytes of conformed rows (and, separately, of raw events) that a task buffers before writing files."""
    sync_seconds: float = Field(default=86_400.0, gt=0)
    """An open sync of which no part came for this long has failed: it deletes nothing."""
    claim_files_mb: int = Field(default=4096, ge=0)
    """Local cache of large datasets' claims, which saves fetching them: 2 bytes per id, or all 16."""

    @property
    def sensor_seconds(self) -> int:
        """Interval in seconds at which sensors check lag and pipes: a sixth of `flush_seconds`, 1 or 2."""
        return max(1, min(2, int(self.flush_seconds / 6)))


class CheckSettings(BaseModel):
    """Settings of the asset checks: when they fail, and how much a check of the whole lake does at a time."""

    late_seconds: float = Field(default=300.0, gt=0)
    """`freshness` warns when a tenant's oldest unsettled event has waited longer ..."""
    very_late_seconds: float = Field(default=3600.0, gt=0)
    """... and fails after this."""
    small_file_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """`file_health` counts smaller files; its limits are ones that upkeep should never let a table reach."""
    max_small_files_per_day: int = Field(default=300, ge=1)
    max_snapshots: int = Field(default=2_000, ge=1)
    max_manifests: int = Field(default=300, ge=1)
    max_files: int = Field(default=200, ge=2)
    """Files of a table whose rows the scheduled check reads: half of them the newest, half any others."""
    budget_seconds: float = Field(default=600.0, gt=0)
    """Duration of a scheduled run; datasets it does not reach come first in the next."""


class UpkeepSettings(BaseModel):
    """Settings of upkeep: compaction, retention of history, raw objects and claims, and the budget of a run.

    Guaranteed time travel: a snapshot stays readable for `history_hours` after it was the current one, unless
    more than `history_snapshots` commits followed it; the last `history_minimum` always do.
    """

    merge_files: int = Field(default=16, ge=2)
    """Files landed in a day since its last compaction at which it is merged (L1) ..."""
    merge_minutes: float = Field(default=60.0, ge=0)
    """... if that was this long ago, or ..."""
    merge_hurry: int = Field(default=10, ge=1)
    """... at once when there are this many times as many."""
    merge_target_mb: int = Field(default=128, ge=1)
    merged_mb: int = Field(default=16, ge=1)
    """Only smaller files are merged, so that the same rows are not rewritten again and again."""
    quiet_hours: float = Field(default=6.0, ge=0)
    """A day without landings for this long is sorted (L2)."""
    target_mb: int = Field(default=512, ge=1)
    """File size of a sorted day."""
    sort_single_mb: int = Field(default=32, ge=1)
    """A day of one file is sorted from this size on."""
    group_mb: int = Field(default=1024, ge=1)
    """Size sorted in one rewrite; each part of a larger day is a commit of its own."""
    manifests: int = Field(default=100, ge=2)
    """Manifests of a table above which they are rewritten."""
    history_hours: float = Field(default=24.0, ge=0)
    history_snapshots: int = Field(default=300, ge=1)
    """Each snapshot is 0.7 kB that every commit to the table reads and writes."""
    history_minimum: int = Field(default=10, ge=1)
    expire_batch: int = Field(default=25, ge=1)
    """Snapshots beyond `history_snapshots` that accumulate before they are expired."""
    sweep_hours: float = Field(default=24.0, ge=0)
    """Interval at which a table's folder, and the raw zone, are searched for orphans."""
    orphan_hours: float = Field(default=24.0, ge=0)
    """Younger orphans are kept, by the object store's clock: an additional safety, never the only one."""
    own_orphan_hours: float = Field(default=72.0, ge=0)
    """Younger orphans of tables of tenants' own are kept: their engines may still commit them."""
    raw_days: int = Field(default=-1, ge=-1)
    """Raw objects are kept this long after their batch settled; -1: permanently. Backfills need them."""
    claim_days: int = Field(default=-1, ge=-1)
    """Event ids are remembered this long; -1: permanently. An event sent again later lands again."""
    run_seconds: float = Field(default=600.0, gt=0)
    """No task begins after this many seconds of a run."""
    retry_minutes: float = Field(default=15.0, ge=0)
    """Wait before a failed task is retried: it doubles each time, up to ..."""
    retry_max_minutes: float = Field(default=360.0, ge=0)
    """... this."""


class LimitSettings(BaseModel):
    """Limits of tenants without limits of their own: a positive maximum, or -1 for unlimited.

    Quotas and rates hold across all API processes, and quotas for events from any source. Default rates are
    beyond a busy tenant's traffic (they stop runaway clients), and so are those of datasets, of which the UI
    shows all tenants' together. Other quotas have no default.
    """

    max_datasets: int = 1_000
    max_records_per_month: int = -1
    """Both in events."""
    requests_per_second: float = 5_000
    events_per_second: float = 100_000
    max_entity_datasets: int = 1_000
    max_lake_tables: int = 10_000
    """Tables and views that the tenant's own engines make ..."""
    max_lake_bytes: int = -1
    """... and bytes of their files."""


class CuratedSettings(BaseModel):
    rollups_dir: Path = Path(__file__).parents[2] / "rollups"
    """Folder of the teams' own rollups: SQL files with a declared grain."""
    session_gap_minutes: float = Field(default=30.0, gt=0)
    """Gap after which an actor's next event begins a new session."""
    quiet_seconds: float = Field(default=60.0, ge=0)
    """A day is computed when it has been unchanged for this long ..."""
    max_wait_seconds: float = Field(default=600.0, ge=0)
    """... or when a change has waited this long."""
    retry_seconds: float = Field(default=60.0, ge=0)
    """Wait after a failed run, and before a failed day is retried: it doubles each time, up to ..."""
    retry_max_seconds: float = Field(default=900.0, ge=0)
    """... this."""
    days_per_run: int = Field(default=500, ge=1)
    """Maximum (tenant, dataset, day) per run, latest changes first."""
    max_rows: int = Field(default=1_000, ge=1)
    """Maximum rows of a team's rollup per day: they are served as one small row."""


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
    pipes: PipeSettings = PipeSettings()

    @property
    def home(self) -> Path:
        return pulse_home()

    @property
    def code_server_socket(self) -> Path:
        """Socket of Dagster's code server."""
        return code_server_socket()

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


_overrides: list[Settings] = []


def give(settings: Settings) -> bool:
    """Replace this process's settings; returns whether they differ from the previous ones.

    For Spark's tasks, whose environment is not the run's.
    """
    if _overrides == [settings]:
        return False
    _overrides[:] = [settings]
    load_settings.cache_clear()
    return True


@contextmanager
def override_settings(settings: Settings) -> Iterator[None]:
    """This process goes by these settings and no other while the block runs."""
    before = list(_overrides)
    give(settings)
    try:
        yield
    finally:
        _overrides[:] = before
        load_settings.cache_clear()


@Resettable
def load_settings() -> Settings:
    """Settings of this process, read once (`load_settings.cache_clear()` resets them).

    Raises:
        UserError: a setting is invalid, or a name in the environment or the file is unknown.
    """
    if _overrides:
        return _overrides[0]
    file = pulse_home() / "settings.json"
    for name, fix in misspelt(Settings.model_fields):
        raise UserError(f"{name} is not a setting", fix=fix or "Unset it; `pulse config` shows all of them")
    try:
        for name, fix in unknown(Settings.model_fields, in_file()):
            raise UserError(
                f"{name} in {file} is not a setting",
                fix=f"{fix or 'Remove it.'} Or run `pulse up`: it writes the file again",
            )
        return Settings()
    except ValidationError as error:  # not as the cause: it holds values, secrets among them
        raise UserError(f"a setting is wrong: {explained(error)}") from None
    except SettingsError as error:
        wrong = not_json(str(error))
        raise UserError(f"a setting is wrong: {wrong}", fix='Lists and mappings are JSON: ["log"]') from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}", fix="Repair it, or run `pulse up`") from error
