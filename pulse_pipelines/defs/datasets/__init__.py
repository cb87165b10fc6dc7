"""Datasets as Dagster assets, partitioned tenant × day, with their checks."""
