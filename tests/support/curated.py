"""Datasets with an actor, and what is due of them computed in this process."""

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from pulse_pipelines import registry
from pulse_pipelines.curated import rollups
from pulse_pipelines.curated.due import Due, due_days
from pulse_pipelines.curated.run import CurateResult, curate
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.domain.moments import utc_text
from pulse_pipelines.query import duckdb_pool
from pulse_resources import iceberg, postgres, spark
from pulse_resources.settings import Settings
from support.ingest import Owner, make_owner

EVER = datetime.min.replace(tzinfo=UTC)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "x-pulse-actor": "who",
    "x-pulse-type": "kind",
    "properties": {
        "who": {"type": "string"},
        "kind": {"type": "string"},
        "amount": {"type": "number"},
        "count": {"type": "integer"},
    },
}


@dataclass(frozen=True)
class Zone:
    """A tenant with the datasets `orders` and `visits`, and a team's rollups."""

    owner: Owner
    session: SparkSession
    folder: Path

    def team(self) -> list[TeamRollup]:
        return rollups.team_rollups(self.folder)

    def due(self) -> list[Due]:
        """What is due of this tenant."""
        mine = self.owner.tenant.tenant_id
        return [day for day in due_days(self.team(), EVER).days if day.tenant.tenant_id == mine]

    def curate(self) -> CurateResult:
        return curate(self.session, self.due())

    def write(self, name: str, sql: str, *, dataset: str = "visits", grain: str | None = "kind") -> None:
        """A team's file."""
        header = f"-- dataset: {dataset}\n" + (f"-- grain: {grain}\n" if grain is not None else "")
        (self.folder / f"{name}.sql").write_text(header + sql)

    def served(self, rollup: str, slug: str = "visits") -> dict[date, list[dict[str, Any]]]:
        """What Postgres has."""
        dataset = registry.find_dataset(self.owner.tenant, slug)
        query = "SELECT day, rows FROM summaries WHERE dataset_id = %s AND rollup = %s ORDER BY day"
        with postgres.tenant_transaction("pulse_api", self.owner.tenant.tenant_id) as connection:
            return dict(connection.execute(query, [dataset.dataset_id, rollup]).fetchall())

    def state(self, rollup: str, columns: str, slug: str = "visits") -> dict[date, Any]:
        dataset = registry.find_dataset(self.owner.tenant, slug)
        query = f"SELECT day, {columns} FROM summaries WHERE dataset_id = %s AND rollup = %s"
        with postgres.tenant_transaction("pulse_api", self.owner.tenant.tenant_id) as connection:
            rows = connection.execute(query, [dataset.dataset_id, rollup]).fetchall()
        return {day: values[0] if len(values) == 1 else tuple(values) for day, *values in rows}

    def location(self, rollup: str, slug: str = "visits") -> str | None:
        """Where the curated table is."""
        tenant = self.owner.tenant
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            return iceberg.find_location(connection, tenant.curated_table(slug, rollup))

    def table(self, rollup: str, slug: str = "visits") -> dict[date, list[dict[str, Any]]]:
        """What the Iceberg table has, as DuckDB reads it."""
        rows_by_day: dict[date, list[dict[str, Any]]] = {}
        for row in self.ask("SELECT * FROM {table} ORDER BY ALL", self.location(rollup, slug)):
            rows_by_day.setdefault(row.pop("day"), []).append(row)
        return rows_by_day

    def ask(self, query: str, location: str | None = None) -> list[dict[str, Any]]:
        """Rows of a DuckDB query over {table}: `visits` if no metadata is given."""
        location = location or registry.current_table(self.owner.tenant, "visits").metadata_location
        with duckdb_pool.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            result = connection.execute(
                query.format(table=duckdb_pool.SCAN), [location] * query.count("{table}")
            )
            return result.to_arrow_table().to_pylist()


@pytest.fixture(scope="session")
def spark_session(stack: Settings) -> Iterator[SparkSession]:
    with spark.session() as session:
        yield session


def make_zone(session: SparkSession, folder: Path) -> Zone:
    owner = make_owner()
    uri = registry.publish_schema(owner.tenant, "visits", json.dumps(SCHEMA)).schema_uri
    registry.create_dataset(owner.tenant, "visits", uri)
    return Zone(owner, session, folder)


@pytest.fixture
def zone(spark_session: SparkSession, tmp_path: Path) -> Zone:
    return make_zone(spark_session, tmp_path)


def visit(at: str, *, dataset: str = "visits", **data: Any) -> bytes:
    """An event at `2026-11-19T10:00:00`."""
    moment = f"{at}Z"
    return json.dumps(
        {"event_id": uuid.uuid4().hex, "dataset": dataset, "timestamp": moment, "data": data}
    ).encode()


def plain(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows of a table as they are served: days and moments as text."""

    def text(value: date) -> str:
        return utc_text(value) if isinstance(value, datetime) else value.isoformat()

    return json.loads(json.dumps(rows, default=text))
