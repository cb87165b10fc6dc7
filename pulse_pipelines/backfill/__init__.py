"""Backfill: rebuild a day of a dataset from the raw zone, and replace it in one commit."""

from pulse_pipelines.backfill.run import Backfilled, backfill, choose_version

__all__ = ["Backfilled", "backfill", "choose_version"]
