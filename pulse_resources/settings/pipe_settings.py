"""Settings of pipes: how long a run holds one of the places that all tenants share."""

from pydantic import BaseModel, Field


class PipeSettings(BaseModel):
    max_pipes: int = Field(default=500, ge=-1)
    """Pipes of a tenant: each is an asset that Dagster's services load; -1: no limit."""
    turn_seconds: float = Field(default=300.0, ge=0)
    """A run that has held its place for longer gives it up when another tenant's run waits for one ..."""
    give_way_seconds: float = Field(default=90.0, ge=0)
    """... and is ended if it did not do so by itself after this long. Longer than a source may be silent."""
    silent_seconds: float = Field(default=3600.0, gt=0)
    """A run that has sent, or delivered, nothing for this long is ended, whether another one waits or not."""
    watch_seconds: float = Field(default=5.0, gt=0)
    """Interval at which a run checks this."""
