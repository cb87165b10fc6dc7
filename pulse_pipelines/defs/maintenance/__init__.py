"""Upkeep in Dagster: one job, launched when tables need it and once a day for all tables."""
