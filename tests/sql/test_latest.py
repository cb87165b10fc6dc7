"""`<slug>__latest`: the latest state of a dataset of entities, at its log's snapshot; whose name it is."""

from collections.abc import Callable
from typing import Any

import pytest
from support.entities import SLUG, entity, make_entities
from support.here import ingest_here as ingest
from support.http import Caller
from support.ingest import make_owner
from support.lake import table

from chaos.surroundings import superuser
from pulse_pipelines import registry
from pulse_pipelines.registry import NamedTable
from pulse_resources import postgres

LATEST = f"{SLUG}__latest"
IDIOM = f"""
SELECT * EXCLUDE (newest, _is_deleted) FROM (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY _updated DESC) AS newest FROM {SLUG})
WHERE newest = 1 AND NOT _is_deleted ORDER BY id
"""


@pytest.fixture
def caller(new_caller: Callable[..., Caller]) -> Caller:
    caller = new_caller()
    make_entities(caller.owner)
    return caller


def answer_of(caller: Caller, sql: str, **more: Any) -> dict[str, Any]:
    answer = caller.http.post("/v1/sql", json={"sql": sql} | more)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def named(caller: Caller, name: str) -> NamedTable:
    tenant = caller.owner.tenant
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id, one_snapshot=True) as connection:
        (named_table,) = registry.named_tables(connection, tenant, [name])
    return named_table


def test_the_latest_state_has_the_newest_version_of_each_existing_entity(caller: Caller) -> None:
    owner, people = caller.owner, f"SELECT id, people FROM {LATEST} ORDER BY id"
    nothing = answer_of(caller, f"FROM {LATEST}")
    assert (nothing["rows"], nothing["snapshots"]) == ([], {SLUG: None})
    owner.send(*(entity(key, people=1) for key in ("DE", "FR", "IT", "ES")), entity("DE", people=2))
    ingest(owner)
    first = table(owner, SLUG).current_snapshot()
    owner.send(entity("FR", _deleted=True), entity("IT", people=3), entity("ES", _deleted=True))
    owner.send(entity("ES", people=4), entity("IT"))
    ingest(owner)
    latest = table(owner, SLUG).current_snapshot()
    assert first
    assert latest
    now = answer_of(caller, people)
    assert now["rows"] == [
        {"id": "DE", "people": 2},
        {"id": "ES", "people": 4},
        {"id": "IT", "people": None},
    ]
    assert now["snapshots"] == {SLUG: str(latest.snapshot_id)}, "by the dataset, whose snapshots these are"
    assert answer_of(caller, f"FROM {LATEST} ORDER BY id")["rows"] == answer_of(caller, IDIOM)["rows"]
    assert "_is_deleted" not in {
        row["column_name"] for row in answer_of(caller, f"DESCRIBE {LATEST}")["rows"]
    }
    then = answer_of(caller, people, snapshots={SLUG: first.snapshot_id})["rows"]
    assert then == [{"id": key, "people": 2 if key == "DE" else 1} for key in ("DE", "ES", "FR", "IT")]
    assert answer_of(caller, people, as_of="2020-01-01T00:00:00Z")["rows"] == []
    both = f"SELECT (SELECT count(*) FROM {SLUG}) AS log, (SELECT count(*) FROM {LATEST}) AS state"
    assert answer_of(caller, both)["rows"] == [{"log": 10, "state": 3}]
    earlier = answer_of(caller, both, snapshots={SLUG: first.snapshot_id})
    assert earlier["rows"] == [{"log": 5, "state": 4}]
    assert earlier["snapshots"] == {SLUG: str(first.snapshot_id)}
    wrong = {"sql": people, "snapshots": {LATEST: first.snapshot_id}}
    refused = caller.http.post("/v1/sql", json=wrong)
    assert (refused.status_code, "slug" in refused.json()["fix"]) == (422, True)


def test_only_own_datasets_of_entities_have_a_latest_state(
    caller: Caller, new_caller: Callable[..., Caller]
) -> None:
    other = new_caller(owner=make_owner())
    for asker, name in ((caller, "orders__latest"), (other, LATEST), (caller, "nowhere__latest")):
        answer = asker.http.post("/v1/sql", json={"sql": f"FROM {name}"})
        assert answer.status_code == 404, answer.text
    answer = caller.http.post("/v1/sql", json={"sql": "FROM orders__latest"})
    assert "events have no latest state" in answer.json()["detail"]


def test_agents_can_list_and_query_the_latest_state(caller: Caller) -> None:
    caller.owner.send(entity("DE", people=83))
    ingest(caller.owner)

    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        request |= {"params": {"name": tool, "arguments": arguments}}
        accept = {"accept": "application/json, text/event-stream"}
        answer = caller.http.post("/mcp", json=request, headers=accept)
        content: dict[str, Any] = answer.json()["result"]["structuredContent"]
        return content

    assert call("describe_dataset", dataset="orders")["latest_state"] is None
    assert call("describe_dataset", dataset=SLUG)["latest_state"] == LATEST
    ran = call("query", sql=f"SELECT id FROM {LATEST}")
    assert ran["untrusted_data"]["rows"] == [{"id": "DE"}]
    assert ran["freshness"][SLUG], "when something landed in the log"


def test_a_dataset_named_latest_wins_over_the_latest_state_and_a_rollup(caller: Caller) -> None:
    """A dataset's of that name, older than the rule for names; then the latest state's; then a rollup's."""
    tenant = caller.owner.tenant
    row = (
        "INSERT INTO iceberg_catalog.iceberg_tables"
        " (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
        " SELECT catalog_name, table_namespace, %s, metadata_location, iceberg_type"
        " FROM iceberg_catalog.iceberg_tables WHERE (table_namespace, table_name) = (%s, %s)"
    )
    with superuser() as connection:  # as a team's rollup of that name was, before it was taken
        for slug in (SLUG, "orders"):
            connection.execute(row, [f"{slug}__latest", tenant.namespace, slug])
    assert (named(caller, LATEST).latest, named(caller, LATEST).table) == (True, SLUG)
    assert (named(caller, "orders__latest").latest, named(caller, "orders__latest").table) == (
        False,
        "orders__latest",
    )
    with superuser() as connection:
        change = "UPDATE pdm_datasets SET slug = %s WHERE (tenant_id, slug) = (%s, 'orders')"
        connection.execute(change, [LATEST, tenant.tenant_id])
    old = named(caller, LATEST)
    assert (old.latest, old.dataset.slug, old.table) == (False, LATEST, LATEST)
