"""Monitoring: status, issues, alerts, reconciliation, and the facts behind the asset checks."""
