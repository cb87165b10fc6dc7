"""/v1/pipes: what `pulse pipe` does, with a key of the tenant, and nothing of where its sources are."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.http import Caller
from support.pipes import bring

from chaos.sources import SOURCE, Folder, database, stored_source
from chaos.surroundings import superuser
from pulse_pipelines import pipes
from pulse_pipelines.pipes import addresses
from pulse_pipelines.pipes.sinks.run import deliver
from pulse_resources.home import pulse_home
from pulse_resources.settings import Settings

PIPE = {"pipe": "planes", "source": SOURCE, "table": "planes", "dataset": "planes"}


@pytest.fixture
def owned(new_caller: Callable[..., Caller]) -> Iterator[Caller]:
    """Who has a source with a table."""
    caller = new_caller()
    with database(caller.owner.tenant) as source:
        source.execute("CREATE TABLE planes (tail text PRIMARY KEY, seats int)")
        yield caller


def scheduled_pipes(caller: Caller) -> list[str]:
    return [pipe.name for pipe in pipes.due() if pipe.tenant == caller.owner.tenant]


def test_a_pipe_is_created_run_paused_reset_and_deleted(owned: Caller) -> None:
    http = owned.http
    created = http.post("/v1/pipes", json=PIPE | {"every": 3600})
    assert created.status_code == 201, created.text
    assert (
        created.json().items() >= {**PIPE, "mode": "full", "state": "active", "every_seconds": 3600}.items()
    )
    assert http.get("/v1/datasets/planes").json()["kind"] == "entities"
    assert scheduled_pipes(owned) == ["planes"], "it has a schedule and never ran"
    assert http.post("/v1/pipes/planes/pause").json()["state"] == "paused"
    assert scheduled_pipes(owned) == []
    assert http.post("/v1/pipes/planes/run", json={"full": True}).status_code == 202
    assert scheduled_pipes(owned) == ["planes"]
    assert http.post("/v1/pipes/planes/resume").json()["state"] == "active"
    assert http.post("/v1/pipes/planes/reset").json()["position"] is None
    assert [pipe["pipe"] for pipe in http.get("/v1/pipes").json()["pipes"]] == ["planes"]
    status = http.get("/v1/pipes/planes").json()
    assert status["last_day"] == dict.fromkeys(("created", "changed", "unchanged", "deleted", "refused"), 0)
    assert (status["syncs"], status["lag_seconds"], status["error"]) == ([], None, None)
    conflict = http.delete("/v1/datasets/planes")
    assert (conflict.status_code, conflict.json()["detail"]) == (
        409,
        "a pipe writes this dataset, or copies it to a sink",
    )
    assert http.delete("/v1/pipes/planes").json() == {"pipe": "planes", "dataset": "planes"}
    assert http.get("/v1/pipes/planes").status_code == 404
    assert http.delete("/v1/datasets/planes").status_code == 200


def test_a_pipe_over_files_shows_its_path_and_format(
    new_caller: Callable[..., Caller], stack: Settings
) -> None:
    caller = new_caller()
    folder, http = Folder(), caller.http
    folder.write("a/planes.csv", b"tail,seats\nN1,180\n")
    options = {"pipe": "planes", "source": SOURCE, "dataset": "planes", "key": ["tail"]}
    with stored_source(caller.owner.tenant, folder.address):
        created = http.post("/v1/pipes", json=options | {"path": "a/*.csv"})
        assert created.status_code == 201, created.text
        for path in ("../x.csv", "/x.csv", "a//x.csv", "a/%2e%2e/x.csv", "http://elsewhere/x.csv"):
            answer = http.post(
                "/v1/pipes", json=options | {"path": path, "dataset": "others", "pipe": "others"}
            )
            assert (answer.status_code, path in answer.text) == (422, False), path
    pipe = http.get("/v1/pipes/planes").json()
    assert (
        pipe.items()
        >= {
            "other_end": f"{SOURCE}/a/*.csv",
            "path": "a/*.csv",
            "format": "csv",
            "table": None,
            "feed": None,
            "mode": None,
        }.items()
    )
    assert http.get("/v1/pipes").json()["pipes"][0]["other_end"] == f"{SOURCE}/a/*.csv"
    assert http.delete("/v1/pipes/planes").status_code == 200


def test_a_table_with_a_timestamp_becomes_events(owned: Caller) -> None:
    http = owned.http
    with psycopg.connect(addresses.url(owned.owner.tenant, SOURCE), autocommit=True) as source:
        source.execute("CREATE TABLE sales (number int PRIMARY KEY, sold_at timestamptz, shop text)")
        source.execute("INSERT INTO sales VALUES (1, '2026-03-01Z', 'a'), (2, NULL, 'b')")
    options = {
        "pipe": "sales",
        "source": SOURCE,
        "table": "sales",
        "dataset": "sales",
        "timestamp": "sold_at",
    }
    created = http.post("/v1/pipes", json=options)
    assert created.status_code == 201, created.text
    assert created.json().items() >= (options | {"mode": "full"}).items()
    assert http.get("/v1/datasets/sales").json()["kind"] == "events"
    bring(owned.owner, "sales")
    (run,) = http.get("/v1/pipes/sales").json()["syncs"]
    assert (run["state"], run["is_full"], run["created"], run["refused"]) == ("done", False, 1, 1)
    assert http.get("/v1/datasets/sales/syncs").json()["syncs"] == [run]
    for decision in ("commit", "rollback"):
        answer = http.post(f"/v1/datasets/sales/syncs/{run['sync_id']}/{decision}")
        assert (answer.status_code, "no such dataset of entities" in answer.text) == (404, True)
    assert http.post("/v1/pipes/sales/reset").json()["position"] is None
    assert http.post("/v1/pipes", json=options | {"timestamp": ""}).status_code == 422
    answer = http.post("/v1/pipes", json=options | {"pipe": "other", "dataset": "other", "mode": "changes"})
    assert (answer.status_code, "only appended" in answer.text) == (422, True)
    assert http.delete("/v1/datasets/sales").status_code == 409
    assert http.delete("/v1/pipes/sales").status_code == 200


def refused(owned: Caller, options: dict[str, Any]) -> tuple[int, str]:
    answer = owned.http.post("/v1/pipes", json=PIPE | options)
    assert str(pulse_home()) not in answer.text, "it tells of the installation"
    return answer.status_code, answer.json()["detail"]


def test_an_unusable_source_is_refused_without_its_address(owned: Caller) -> None:
    for options, status, reason in (
        ({"source": "elsewhere"}, 404, "the source has no address"),
        ({"table": "nowhere"}, 404, "no such table"),
        ({"table": "a.b.c.d"}, 404, "no such table"),
        ({"table": 'planes"'}, 404, "no such table"),
        ({"table": "pg_stat_activity"}, 422, "the source is not a table"),
        ({"source": "postgres://u:p@h/db"}, 422, "source"),
        ({"password": "secret"}, 422, "password"),
        ({"transform": "SELECT id FROM planes"}, 422, "transform"),
        ({"mode": "incremental"}, 422, "needs a cursor"),
        ({"every": 0}, 422, "every"),
        ({"key": ["seats"]}, 422, "no unique index"),
    ):
        actual, detail = refused(owned, options)
        assert actual == status, (options, detail)
        assert reason in detail, detail
    assert owned.http.get("/v1/pipes").json() == {"pipes": []}
    assert owned.http.post("/v1/pipes", json=PIPE).status_code == 201
    assert refused(owned, {}) == (409, "the tenant has a pipe with this name")
    assert refused(owned, {"dataset": "further"}) == (409, "the tenant has a pipe with this name")
    assert owned.http.get("/v1/datasets/further").status_code == 404, "no dataset stays of what was refused"
    assert refused(owned, {"pipe": "other"}) == (409, "another pipe writes this dataset")


def test_a_dataset_is_delivered_to_a_sink(owned: Caller) -> None:
    http = owned.http
    assert http.post("/v1/pipes", json=PIPE).status_code == 201
    options = {"pipe": "out", "from": "planes", "to": SOURCE, "table": "copied", "create": True}
    created = http.post("/v1/pipes", json=options)
    assert created.status_code == 201, created.text
    expected = {"direction": "out", "source": SOURCE, "table": "copied", "dataset": "planes", "mode": None}
    assert created.json().items() >= (expected | {"behind": 0, "position": None}).items()
    deliver(owned.owner.tenant, "out")
    pipe = http.get("/v1/pipes/out").json()
    assert (pipe["syncs"], pipe["error"]) == ([], None)
    assert [(delivery["state"], delivery["upserted"]) for delivery in pipe["deliveries"]] == [("done", 0)]
    assert [row["direction"] for row in http.get("/v1/pipes").json()["pipes"]] == ["out", "in"]
    for wrong, reason in (
        ({"dataset": "planes"}, "a pipe has no dataset"),
        ({"from": "nowhere"}, "no such dataset"),
        ({"to": "elsewhere"}, "has no address"),
        ({"create": False, "table": "nowhere"}, "no such table"),
    ):
        answer = http.post("/v1/pipes", json=options | {"pipe": "other"} | wrong)
        assert reason in answer.json()["detail"], answer.text
        assert str(pulse_home()) not in answer.text
    assert http.post("/v1/pipes", json={"pipe": "x", "from": "planes"}).status_code == 422
    for name in ("planes", "out"):
        assert http.delete("/v1/datasets/planes").status_code == 409
        assert http.delete(f"/v1/pipes/{name}").status_code == 200
    assert http.delete("/v1/datasets/planes").status_code == 200


def test_a_pipe_of_changes_without_its_source_is_deleted_on_request(owned: Caller) -> None:
    http, tenant = owned.http, owned.owner.tenant
    assert http.post("/v1/pipes", json=PIPE).status_code == 201
    with superuser() as connection:  # no server with a log of changes is needed to be gone
        changes = """definition || '{"mode": "changes"}'"""
        connection.execute(
            f"UPDATE pipes SET definition = {changes} WHERE tenant_id = %s", [tenant.tenant_id]
        )
    with stored_source(tenant, "host=127.0.0.1 port=9 dbname=postgres"):
        refused = http.delete("/v1/pipes/planes")
        assert (refused.status_code, "leave_slot=true" in refused.text) == (503, True), refused.text
        addresses.file(tenant, SOURCE).unlink()
        refused = http.delete("/v1/pipes/planes")
        assert (refused.status_code, "leave_slot=true" in refused.text) == (409, True), refused.text
        assert http.delete("/v1/pipes/planes", params={"leave_slot": "true"}).status_code == 200
    assert http.get("/v1/pipes/planes").status_code == 404
