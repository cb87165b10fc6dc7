"""Curated zone in Dagster: assets downstream of the datasets, computed when an input day changes."""
