"""Settings of alerts: recipients, notifiers and thresholds."""

from pydantic import BaseModel, Field, SecretStr


class AlertSettings(BaseModel):
    notifiers: list[str] = Field(default_factory=lambda: ["log"])
    """Notifiers: `log`, `webhook`, or a custom class as `package.module:Class`."""
    webhook_url: SecretStr | None = None
    webhook_timeout_seconds: float = Field(default=5.0, gt=0)
    webhook_attempts: int = Field(default=3, ge=1, le=10)
    """Consecutive attempts; a failed delivery is retried at the next evaluation, half a minute later."""
    repeat_seconds: float = Field(default=3_600.0, gt=0)
    """Interval at which lasting alerts are repeated."""
    stale_seconds: float = Field(default=300.0, gt=0)
    """A tenant whose oldest unsettled event has waited this long is stale."""
    outbox_seconds: float = Field(default=300.0, gt=0)
    """Dead letters not published this long after settling are overdue."""
    failed_run_hours: float = Field(default=24.0, gt=0)
    """How long a failed run that was not repeated is an alert."""
    pipe_log_mb: float = Field(default=1_024.0, gt=0)
    """A source that keeps more of its log for a pipe's changes than this is an alert."""
    keep_days: float = Field(default=90.0, gt=0)
    """Resolved alerts are kept this long."""
