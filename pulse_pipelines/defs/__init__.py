"""Dagster adapters around the stages; only definitions.py imports them."""

from pulse_pipelines.runtime import run_config

run_config.take_values_alone()  # before any module of this package defines a config
