"""Backfill: rebuild a day from the raw zone and replace it in one commit; try a schema on a day's events."""

from pulse_pipelines.backfill.run import Backfilled, backfill, choose_version
from pulse_pipelines.backfill.trial import Trial, try_schema

__all__ = ["Backfilled", "Trial", "backfill", "choose_version", "try_schema"]
