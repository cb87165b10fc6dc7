"""Event limits: bounds on every event, regardless of its dataset's schema."""

from datetime import timedelta

from pulse_pipelines.domain.event_limits import EventLimits
from pulse_resources.settings import load_settings


def event_limits() -> EventLimits:
    """The limits from the settings of this process."""
    settings = load_settings().ingest
    return EventLimits(
        settings.max_event_bytes,
        settings.max_event_depth,
        settings.earliest_timestamp,
        timedelta(seconds=settings.timestamp_ahead_seconds),
        settings.judge_seconds,
        settings.judge_memory_bytes,
        settings.judge_batch_seconds,
    )
