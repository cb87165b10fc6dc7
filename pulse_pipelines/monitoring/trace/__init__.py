"""Trace of one event, by its id or by its position in the tenant's topic.

The topic, Postgres (ledger, claims, dead letters) and the tables are searched in the tenant's own session,
with a limit on the bytes read; the result names what was left out.
"""

from pulse_pipelines.monitoring.trace.fate import Fate, FateState, Row, Trace
from pulse_pipelines.monitoring.trace.lookup import by_id, by_place

__all__ = ["Fate", "FateState", "Row", "Trace", "by_id", "by_place"]
