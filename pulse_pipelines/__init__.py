"""The pipeline: domain (no I/O), stages (the path of an event), defs (Dagster adapters)."""
