"""The oracle notices what it must, and the shorter part of `make chaos` passes it."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import httpx
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from pydantic import TypeAdapter
from pyiceberg.manifest import DataFile
from rich.console import Console
from support.ingest import Owner
from support.lake import pointing_at, spark, with_value

from chaos import batches, oracle, report
from chaos.external import catalog
from chaos.load import Load
from chaos.progress import progress
from chaos.report import Result
from chaos.scenario import Scenario
from chaos.scenarios import SCENARIOS, kills, losses, pauses, poison, writers
from chaos.sent import Sent
from chaos.surroundings import superuser
from chaos.waiting import PATIENCE_S, wait
from pulse_api.http import logs
from pulse_pipelines import registry
from pulse_pipelines.tables import arrow_columns, parquet_files
from pulse_resources import iceberg, kafka, object_store, postgres
from pulse_resources.settings import Settings

SEED = 5
SCENARIO = Scenario("kill [everything]", kills.run, 20, "kills")
Change = Callable[[pa.Table], pa.Table]


def ingested(seed: int) -> list[Sent]:
    """Tenants with a part each in a batch, as it should be."""
    loads = [Load(seed, bad=0.1), Load(seed + 1), Load(seed + 2, bad=0.1)]
    all_sent = [Sent(batches.make_tenant()) for _ in loads]
    for load, of_load in zip(loads, all_sent, strict=True):
        of_load.send(load.events(150))
    batches.finish(batches.plan([of_load.tenant for of_load in all_sent]), remaining_attempts=1)
    assert oracle.find_violations(all_sent, spark()) == []
    return all_sent


@pytest.fixture(scope="module")
def landed(stack: Settings) -> list[Sent]:
    return ingested(SEED)


@pytest.fixture(scope="module")
def sent(landed: list[Sent]) -> Iterator[list[Sent]]:
    """What tests harm and heal: at their end it is as it was."""
    healthy = landed[:2]
    yield healthy
    assert oracle.find_violations(healthy) == []


@pytest.fixture(scope="module")
def doomed(landed: list[Sent]) -> list[Sent]:
    """A tenant that a test may harm for good."""
    return landed[2:]


def kinds(sent: list[Sent]) -> set[str]:
    """Of tables and topics; rows that were changed around Pulse are not what a state has."""
    return {finding.kind for finding in oracle.find_violations(sent) if "the state's" not in finding.kind}


@contextmanager
def rewritten(sent: Sent, change: Change, *, folder: str | None = None) -> Iterator[None]:
    """One file of the tenant's orders is another, written around Pulse, while the block runs."""
    name, dataset = (sent.tenant.namespace, "orders"), registry.find_dataset(sent.tenant, "orders")
    location = registry.current_table(sent.tenant, "orders").metadata_location
    table = iceberg.load_table(name, location)
    old: DataFile = max((task.file for task in table.scan().plan_files()), key=lambda f: f.record_count)
    with object_store.file_system().open_input_file(object_store.key(old.file_path)) as source:
        rows = pq.read_table(source).cast(arrow_columns.arrow_schema(dataset.table_schema))
    path = f"{folder or table.location()}/data/{parquet_files.token()}.parquet"
    day = rows.column("timestamp")[0].as_py().date()
    file, content = parquet_files.encode(dataset, day, path, change(rows))
    object_store.put(path, content)
    staged = iceberg.stage_replace(table, [old], parquet_files.data_files([file]), {"test": "harm"})
    with pointing_at(Owner(sent.tenant), staged.new):
        yield


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda rows: rows.slice(1), {"lost", "orders: lost ids"}, id="a deleted row"),
        pytest.param(
            lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]),
            {"double", "orders: double ids"},
            id="a doubled row",
        ),
        pytest.param(
            lambda rows: pa.concat_tables([rows, with_value(rows, "_offset", 10**6).slice(0, 1)]),
            {"from nowhere", "orders: double ids"},
            id="an event landed again",
        ),
        pytest.param(
            lambda rows: with_value(rows, "country", "ZZ"),
            {"orders: rows that differ from their event"},
            id="a changed value",
        ),
        pytest.param(
            lambda rows: with_value(rows, "id", "forged"),
            {
                "orders: lost ids",
                "orders: ids from nowhere",
                "orders: rows that differ from their event",
            },
            id="a changed id",
        ),
    ],
)
def test_the_oracle_notices_rows(sent: list[Sent], change: Change, expected: set[str]) -> None:
    with rewritten(sent[0], change):
        assert kinds(sent) == expected


def test_the_oracle_notices_a_file_in_another_tenants_folder(sent: list[Sent]) -> None:
    location = registry.current_table(sent[1].tenant, "orders").metadata_location
    elsewhere = location.rpartition("/metadata/")[0]
    with rewritten(sent[0], lambda rows: rows, folder=elsewhere):
        assert kinds(sent) == {"files outside of their table's folder"}


def test_the_oracle_notices_a_file_that_two_tables_have(sent: list[Sent]) -> None:
    """One tenant's table is pointed at the other's metadata."""
    theirs = registry.current_table(sent[1].tenant, "orders").metadata_location
    with pointing_at(Owner(sent[0].tenant), theirs):
        assert {"a file that is live more than once", "lost", "orders: ids from nowhere"} <= kinds(sent)


def test_the_oracle_notices_a_lost_file(sent: list[Sent]) -> None:
    location = registry.current_table(sent[0].tenant, "orders").metadata_location
    table = iceberg.load_table((sent[0].tenant.namespace, "orders"), location)
    path = next(iter(table.scan().plan_files())).file.file_path
    with object_store.file_system().open_input_file(object_store.key(path)) as source:
        content = source.read()
    object_store.file_system().delete_file(object_store.key(path))
    try:
        assert "a table that cannot be read" in kinds(sent)
    finally:
        object_store.put(path, content)


def test_the_oracle_notices_states(sent: list[Sent]) -> None:
    """Another event as a key's newest, and a quarter too much in a sum of its windows."""
    dataset = [registry.find_dataset(sent[0].tenant, "orders").dataset_id]
    event = "UPDATE event_state_keys SET event_id = {} WHERE key = 'DE' AND dataset_id = %s"
    total = (
        "UPDATE event_window_buckets SET sums[1] = sums[1] {} 0.25 WHERE key = 'DE' AND dataset_id = %s"
        " AND minute = (SELECT max(minute) FROM event_window_buckets WHERE key = 'DE' AND dataset_id = %s)"
    )
    with superuser() as connection:
        connection.execute(event.format("event_id || 'x'"), dataset)
        connection.execute(total.format("+"), dataset * 2)
        assert {finding.kind for finding in oracle.find_violations(sent)} == {
            "orders: the state's newest events differ",
            "orders: the state's windows differ",
        }
        connection.execute(event.format("rtrim(event_id, 'x')"), dataset)
        connection.execute(total.format("-"), dataset * 2)


def test_the_oracle_notices_dead_letters(doomed: list[Sent]) -> None:
    """One that says something else, then none is there."""
    tenant = doomed[0].tenant
    topic = tenant.dead_letter_topic
    (partition, offset), (payload, _) = next(oracle.published(tenant))
    producer = kafka.producer()
    key = f"{tenant.topic}/{partition}/{offset}"
    producer.produce(topic, payload, key, headers={"pulse.reason": "another"})
    assert producer.flush(PATIENCE_S) == 0
    assert kinds(doomed) == {"wrong dead letter"}
    all_of_it = [TopicPartition(topic, partition, OFFSET_END) for partition in range(2)]
    for future in kafka.admin().delete_records(all_of_it).values():
        future.result()
    assert {"lost", "bad, and not a dead letter"} <= kinds(doomed)


def test_killed_at_many_steps(stack: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every 72nd step, and at random moments; what is left is as after a run without faults."""
    monkeypatch.setattr(kills, "STEPS", kills.STEPS[SEED % 72 :: 72])  # `make chaos` has the time for all
    monkeypatch.setattr(kills, "TENANTS", 2)
    monkeypatch.setattr(kills, "EVENTS", 60)
    monkeypatch.setattr(kills, "LONGEST_S", 0.3)  # no attempt ends so soon, on however fast a machine
    killed = kills.run(None, SEED, len(kills.STEPS) + len(kills.PLANNING), lambda _: None)
    assert [*killed.findings, *oracle.find_violations(killed.sent, spark())] == []
    assert {kills.RANDOM, *kills.STEPS, *kills.PLANNING} == killed.places.keys()


@pytest.mark.parametrize(
    ("scenario", "amount"),
    [
        pytest.param(pauses, 1, marks=pytest.mark.slow),  # as tests/ingest/test_faults.py
        pytest.param(poison, 1, marks=pytest.mark.slow),  # as tests/ingest/test_poison.py
        pytest.param(losses, 1, marks=pytest.mark.slow),
        pytest.param(losses, 2, marks=pytest.mark.slow, id="losses, the second by a topic that begins anew"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_other_scenarios_of_the_shorter_part_pass(
    stack: Settings, scenario: ModuleType, amount: int
) -> None:
    """Runs that are overtaken are fenced; poison holds up nothing; a loss is never silent."""
    outcome = scenario.run(None, SEED, amount, lambda _: None)
    assert [*outcome.findings, *oracle.find_violations(outcome.sent, spark())] == []


@pytest.mark.slow
def test_engines_beside_all_other_writers(stack: Settings) -> None:
    outcome = writers.run(None, SEED, 0.5, lambda _: None, external=True)
    assert [*outcome.findings, *oracle.find_violations(outcome.sent, spark())] == []
    assert {"external append", "upkeep of own tables", "batch"} <= outcome.places.keys()


def test_the_page_keeps_the_last_result_of_each_scenario(tmp_path: Path) -> None:
    page = tmp_path / "chaos.md"
    for name, harm, findings in (("b", "2 cuts", []), ("a", "1 kill", ["lost"]), ("a", "3 kills", [])):
        result = Result(name=name, command=f"again {name}", harm=harm, findings=findings, took_s=1)
        report.keep(page, result, ["a", "b"], report.circumstances())
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith(("| a |", "| b |"))] == [
        line for line in text.splitlines() if "3 kills" in line or "2 cuts" in line
    ]
    assert "lost" not in text
    assert "again a\nagain b" in text


def test_the_page_keeps_results_of_several_seeds_of_the_same_commit(tmp_path: Path) -> None:
    page = tmp_path / "chaos.md"
    now = report.circumstances()
    for seed, commit in ((1, "old"), (2, "new"), (3, "new"), (2, "new")):
        result = Result(name="a", command=f"seed {seed}", harm=f"of {seed}", places={"x": seed}, took_s=1)
        report.keep(page, result, ["a"], now.model_copy(update={"commit": commit}))
    text = page.read_text()
    assert [line[:12] for line in text.splitlines() if line.startswith("| a |")] == [
        "| a | of 3 |",
        "| a | of 2 |",
    ]
    assert text.count("a: counts") == 1
    assert "| x | 5 |" in text


def test_a_deadlock_is_counted_though_its_loser_may_try_again(stack: Settings) -> None:
    before = oracle.deadlocks()
    lock = "SELECT pg_advisory_xact_lock(hashtext('a deadlock of the tests'), %s)"
    meet, lost = threading.Barrier(2), list[Exception]()

    def take(first: int, second: int) -> None:
        try:
            with postgres.transaction("pulse_pipeline") as connection:
                connection.execute(lock, [first])
                meet.wait(PATIENCE_S)
                connection.execute(lock, [second])
        except psycopg.errors.DeadlockDetected as error:
            lost.append(error)

    threads = [threading.Thread(target=take, args=order) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == 1
    wait(lambda: oracle.deadlocks() == before + 1, "Postgres does not count the deadlock", 20)


def test_scenarios_are_named_apart() -> None:
    """By its whole name each can be chosen alone."""
    names = [scenario.name for scenario in SCENARIOS]
    assert [[other for other in names if name in other] for name in names] == [[name] for name in names]


def test_stored_results_can_be_read() -> None:
    stored = TypeAdapter(list[report.StoredResult]).validate_json(Path("docs/chaos.json").read_bytes())
    assert {entry.result.name for entry in stored} <= {scenario.name for scenario in SCENARIOS}


def test_progress_is_written_in_lines_without_a_terminal() -> None:
    written = io.StringIO()
    with progress(Console(file=written), SCENARIO, 10, line_s=0.05) as advance:
        until_it_says("kill [everything]: 0 min\n", written)
        advance(4)
        until_it_says("kill [everything]: 0 min, 4/10 kills\n", written)
    ended = written.getvalue()
    assert ended.startswith("begins: kill [everything]\n")
    time.sleep(0.1)
    assert written.getvalue() == ended


def until_it_says(line: str, written: io.StringIO) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while line not in written.getvalue():
        assert time.monotonic() < deadline, written.getvalue()
        time.sleep(0.01)


def test_progress_is_a_bar_on_a_terminal() -> None:
    written = io.StringIO()
    with progress(Console(file=written, force_terminal=True, width=120), SCENARIO, 10) as advance:
        advance(4)
    assert "4/10 kills" in written.getvalue()
    assert "begins" not in written.getvalue()


def test_the_catalog_of_external_writers_prints_no_requests(
    stack: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    with catalog() as url:
        assert httpx.get(f"{url}/v1/config", timeout=PATIENCE_S).status_code == 401
    assert "route" not in capfd.readouterr().out
    logs.access({"route": "/v1/config"})
    assert '"logger":"pulse.access","route"' in capfd.readouterr().out
