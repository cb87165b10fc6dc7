"""Two processes of the catalog: a commit at one is seen at the other, none is lost, none is made twice."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from support.catalog import Guest
from support.engines import rest
from support.http import Api, service_process
from support.rest_catalog import OWN, SCHEMA, Lake, properties

from chaos.waiting import wait
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.registry import keys

TIMES = 5
LAKE = (KeyScope.LAKE_READ, KeyScope.LAKE_WRITE)


@pytest.fixture(scope="module")
def another_catalog(catalog: Api) -> Iterator[Api]:
    """A process of its own."""
    with service_process("pulse_api.lake.server", "LAKE") as (url, _):
        yield Api(url)


@pytest.fixture
def other_lake(another_catalog: Api, writer: Guest) -> Iterator[Lake]:
    with another_catalog.client(writer.key.text) as client:
        yield Lake(client)


def test_appends_by_both_all_land_once(
    own_engine: RestCatalog,
    another_catalog: Api,
    writer: Guest,
) -> None:
    name = f"own.t{uuid.uuid4().hex[:8]}"
    own_engine.create_table(name, pa.schema([("id", pa.int64())]))

    def append(engine: RestCatalog, number: int) -> None:
        rows = pa.table({"id": pa.array([number], pa.int64())})
        while True:
            try:
                engine.load_table(name).append(rows)
            except CommitFailedException:
                continue
            return

    engines = (own_engine, rest(another_catalog, writer))
    with ThreadPoolExecutor(2) as threads:
        for engine, start in zip(engines, (0, TIMES), strict=True):
            for number in range(start, start + TIMES):
                threads.submit(append, engine, number)
    for engine in engines:
        assert sorted(engine.load_table(name).scan().to_arrow()["id"].to_pylist()) == [*range(2 * TIMES)]


def test_a_change_of_one_catalog_process_is_seen_by_the_other(own_lake: Lake, other_lake: Lake) -> None:
    for first, second in ((own_lake, other_lake), (other_lake, own_lake)) * TIMES:
        table = first.make()
        assert second.load(table.name)["metadata-location"] == table.at
        assert first.commit(table.name, properties(colour="red")).status_code == 200
        changed = second.load(table.name)
        assert changed["metadata"]["properties"]["colour"] == "red"
        assert second.client.delete(f"{OWN}/tables/{table.name}").status_code == 204
        assert first.client.get(f"{OWN}/tables/{table.name}").status_code == 404


def test_a_request_that_is_sent_to_both_is_done_once(own_lake: Lake, other_lake: Lake) -> None:
    for _ in range(TIMES):
        body = {"name": f"t{uuid.uuid4().hex[:8]}", "schema": SCHEMA}
        once = {"Idempotency-Key": str(uuid.uuid4())}

        def create(lake: Lake, body: object = body, once: dict[str, str] = once) -> httpx.Response:
            return lake.client.post(f"{OWN}/tables", json=body, headers=once)

        with ThreadPoolExecutor(2) as threads:
            answers = [*threads.map(create, (own_lake, other_lake))]
        assert {answer.status_code for answer in answers} <= {200, 409, 503}, [a.text for a in answers]
        again = [create(lake) for lake in (own_lake, other_lake)]
        assert [answer.status_code for answer in again] == [200, 200]
        assert len({answer.json()["metadata-location"] for answer in again}) == 1


def test_a_revoked_key_opens_neither(catalog: Api, another_catalog: Api, writer: Guest) -> None:
    issued = keys.issue_key(writer.tenant, "short", LAKE)

    def opens(api: Api) -> bool:
        with api.client(issued.text) as client:
            return client.get("/v1/namespaces").status_code == 200

    assert opens(catalog)
    assert opens(another_catalog)
    keys.revoke_key(writer.tenant, issued.stored.key_id)
    for api in (catalog, another_catalog):
        wait(lambda api=api: not opens(api), "it opens")
