"""Pulse's own processes and storage for Dagster and Spark, built on their private symbols."""
