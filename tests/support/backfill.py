"""Backfills of the day that `support.ingest.event` is of, and accounts that must balance."""

import json
from datetime import date
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.backfill import Backfilled, backfill
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from support.ingest import SCHEMA, Owner
from support.lake import DAY, spark
from support.moves import moved


def rebuilt(owner: Owner, day: date = DAY, **how: Any) -> Backfilled:
    return backfill(spark(), owner.tenant, "orders", day, parallelism=2, **how)


def balanced(owner: Owner) -> tuple[int, int, int]:
    report = reconcile_tenant(owner.tenant)
    assert report.balanced, report.problems
    return report.landed, report.duplicates, report.dead_letters


def move(owner: Owner, **properties: Any) -> None:
    """Publish the schema with other properties and move `orders` to it."""
    schema = SCHEMA | {"properties": SCHEMA["properties"] | properties}
    uri = registry.publish_schema(owner.tenant, "orders", json.dumps(schema)).schema_uri
    moved(owner.tenant, "orders", uri)
