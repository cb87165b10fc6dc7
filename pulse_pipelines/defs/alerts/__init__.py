"""Alerts: a sensor looks for what is wrong, in Pulse and in Dagster, and tells the notifiers."""
