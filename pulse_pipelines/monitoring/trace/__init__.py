"""Trace: what became of one event, by its id or by its place in the tenant's topic.

An event leaves traces in the topic, in Postgres (ledger, claims, dead letters) and as a row. Each of them is
looked at in the tenant's own session, with a bound on what is read; what was left out is said.
"""

from pulse_pipelines.monitoring.trace.fate import Fate, Row, State, Trace
from pulse_pipelines.monitoring.trace.look import by_id, by_place

__all__ = ["Fate", "Row", "State", "Trace", "by_id", "by_place"]
