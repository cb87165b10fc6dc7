"""Settings of alerts: who is told, how, and from when on something is one."""

from pydantic import BaseModel, Field, SecretStr


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
