"""Alerts: a sensor that checks Pulse and Dagster for issues and notifies."""
