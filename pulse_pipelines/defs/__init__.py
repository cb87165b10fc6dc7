"""Thin Dagster adapters around the stages; nobody but definitions.py imports them."""
