"""The curated zone in Dagster: assets downstream of the datasets, computed when their input day changes."""
