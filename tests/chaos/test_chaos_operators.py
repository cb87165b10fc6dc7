"""Operators and tenants at once: schedules are data, the oracle notices what it must, a short one passes."""

import gzip
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.claims import IDS, changed_claims
from support.ingest import Owner
from support.lake import harmed, pointing_at, with_value

from chaos import batches
from chaos.operators import cast, closing, invariants
from chaos.operators.closing import Closing, disagreement, find_violations
from chaos.operators.draw import drawn
from chaos.operators.events import NOW, PERSONS, event
from chaos.operators.evidence import EVER, Claims, Evidence, Letter, Life
from chaos.operators.processes import Ended, carry_out
from chaos.operators.rounds import Rounds
from chaos.operators.schedule import EVERYONE, TENANTS, Blow, Schedule, Step
from chaos.operators.shrink import shrunk
from chaos.operators.world import Arrived, Place, Progress, Receipt, World
from chaos.oracle import Finding
from chaos.scenarios import operators
from chaos.surroundings import with_settings
from pulse_pipelines import registry
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.monitoring.reconcile import Problem, TenantReport
from pulse_pipelines.tables import arrow_columns, parquet_files
from pulse_resources import iceberg, kafka, object_store
from pulse_resources.settings import Settings, load_settings

SEED = 5
Harm = Callable[[World], AbstractContextManager[None]]


# schedules ---------------------------------------------------------------------------------------


def test_a_schedule_is_its_seeds_and_a_longer_one_begins_with_a_shorter_one() -> None:
    assert drawn(SEED, 7) == drawn(SEED, 7)
    assert drawn(SEED, 7).rounds[:3] == drawn(SEED, 3).rounds
    assert drawn(SEED, 7) != drawn(SEED + 1, 7)


def test_all_kinds_of_steps_are_drawn_and_printed() -> None:
    schedule = drawn(SEED, 100)
    steps = [step for steps in schedule.rounds for step in steps]
    assert {step.action for step in steps} == {
        *("send", "collect", "lose", "age", "ingest", "replay", "discard", "backfill", "move", "delete"),
        *("create", "erase", "accept", "quota", "upkeep", "retain", "curate"),
    }
    assert {step.tenant for step in steps} == {EVERYONE, *range(TENANTS)}
    assert {(s.blow.point is None, s.blow.pause_s is None) for s in steps if s.blow} == {
        *((True, True), (True, False), (False, True), (False, False))
    }
    assert str(schedule).count("\n") == schedule.length + len(schedule.rounds)


def test_a_schedule_is_kept_in_a_file(tmp_path: Path) -> None:
    schedule, file = drawn(SEED, 20), tmp_path / "schedule.json"
    schedule.keep(file)
    assert Schedule.read(file) == schedule


def test_a_schedule_is_shrunk_to_the_failing_steps() -> None:
    """Two steps of two rounds together; without the blow, too; and it does not go wrong every time."""
    rounds = tuple(tuple(Step("send", n, {"at": at}, blow=Blow()) for at in range(4)) for n in range(5))
    draw, guilty = random.Random(SEED), {(1, 2), (4, 0)}  # noqa: S311 - no secret
    tried = []

    def wrong(candidate: Schedule) -> bool:
        tried.append(candidate)
        places = {(step.tenant, step.arguments["at"]) for steps in candidate.rounds for step in steps}
        return guilty <= places and draw.random() < 0.9

    schedule = shrunk(Schedule(SEED, rounds), wrong, seconds=60, tries=5)
    assert [[(s.tenant, s.arguments["at"], s.blow) for s in steps] for steps in schedule.rounds] == [
        [(1, 2, None)],
        [(4, 0, None)],
    ]
    assert len(tried) < 150
    assert shrunk(Schedule(SEED, rounds), wrong, seconds=0) == Schedule(SEED, rounds)


# what the oracle notices -------------------------------------------------------------------------


ERASED = PERSONS[3]
AT = (0, 2)
"""Where the erased row was."""


@pytest.fixture(scope="module")
def world(stack: Settings) -> World:
    """A tenant with rows, a copy, open dead letters, a row and a letter that were erased, and rollups."""
    world = cast.tenant(0)
    at = {"slug": "orders"}
    world.send(
        [
            event("a", **at),
            event("b", kind="coupon", **at),
            event("letter", kind="fraction", **at),
            event("a", kind="voucher", **at),
            event("e", person=ERASED, **at),
            event("f", kind="invalid", person=ERASED, **at),
            event("g", **at),
        ],
        kafka.shared_producer(),
    )
    done(world, "ingest")
    answer = done(world, "erase", slug="orders", person=ERASED)
    world.erasures_begun.add(("orders", ERASED))
    covers = {int(partition): end for partition, end in answer.result["covers"].items()}
    world.receipts.append(Receipt("orders", ERASED, covers, answer.result["dataset"]))
    with with_settings(CURATED__QUIET_SECONDS=0):
        done(world, "curate")
    batches.publish_overdue()
    world.archive()
    world.record_round()
    assert find_violations([world], last=True) == []
    return world


def done(world: World, name: str, **arguments: object) -> Ended:
    ended = carry_out(Step(name, 0, arguments), [world.tenant])
    assert ended.how == "done", ended
    return ended


def kinds(world: World, *, last: bool = True) -> set[str]:
    return {finding.kind for finding in find_violations([world], last=last)}


def unclaimed(event_id: str) -> Harm:
    return lambda world: harmed(
        Owner(world.tenant), IDS, changed_claims(Owner(world.tenant), lost=[event_id])
    )


def claimed(event_id: str) -> Harm:
    return lambda world: harmed(Owner(world.tenant), IDS, changed_claims(Owner(world.tenant), got=[event_id]))


def mine(table: str, statement: str) -> Harm:
    """Harm by a statement on the tenant's rows of a table."""
    return lambda world: harmed(Owner(world.tenant), table, statement)


@contextmanager
def rewritten(world: World, change: Callable[[pa.Table], pa.Table]) -> Iterator[None]:
    """The rows of the tenant's orders are others, in one file, written around Pulse, while the block runs."""
    name, dataset = (world.tenant.namespace, "orders"), registry.find_dataset(world.tenant, "orders")
    table = iceberg.load_table(name, registry.current_table(world.tenant, "orders").metadata_location)
    rows = change(table.scan().to_arrow().cast(arrow_columns.arrow_schema(dataset.table_schema)))
    file, content = parquet_files.encode(
        dataset, NOW.date(), f"{table.location()}/data/{parquet_files.token()}.parquet", rows
    )
    before = [task.file for task in table.scan().plan_files()]
    with planted(file.path, content):
        staged = iceberg.stage_replace(table, before, parquet_files.data_files([file]), {"test": "harm"})
        with pointing_at(Owner(world.tenant), staged.new):
            yield


def without(event_id: str) -> Harm:
    """An event has no row."""
    return lambda world: rewritten(world, lambda rows: rows.filter(pc.not_equal(rows.column("id"), event_id)))


def with_erased(rows: pa.Table) -> pa.Table:
    """The row of the person is there again, at its place."""
    again = with_value(with_value(with_value(rows, "id", "e"), "_offset", AT[1]), "_kafka_partition", 0)
    return pa.concat_tables([rows, again.slice(0, 1)])


DEAD = """
INSERT INTO dead_letters SELECT (jsonb_populate_record(l, '{{"partition": 0, "event_offset": 0,
    "event_id": "a", "published_at": null}}')).* FROM dead_letters l WHERE {mine} AND event_id = 'letter'
"""
UNPUBLISHED = """
INSERT INTO dead_letters SELECT (jsonb_populate_record(l, '{{"partition": 0, "event_offset": 3}}')).*
FROM dead_letters l WHERE {mine} AND event_id = 'letter'
"""
REWOUND = """
UPDATE ingest_positions SET settled_offset = settled_offset - 1, planned_offset = planned_offset - 1
WHERE {mine} AND partition = 0
"""
TO_THE_FIRST = """
UPDATE ingest_positions SET settled_offset = 0, planned_offset = 0 WHERE {mine} AND partition = 0
"""
UNKNOWN_PARTITION = """
INSERT INTO ingest_positions SELECT (jsonb_populate_record(p, '{{"partition": 7}}')).*
FROM ingest_positions p WHERE {mine} AND partition = 1
"""
CLOSED = """
UPDATE dead_letters SET resolution = 'replayed', resolved_at = now() WHERE {mine} AND event_id = 'letter'
"""
SAYS_STILL = "UPDATE dead_letters SET payload = 'p3' WHERE {mine} AND resolution = 'erased'"


@contextmanager
def planted(path: str, content: bytes) -> Iterator[None]:
    """An object lies in the store while the block runs."""
    object_store.put(path, content)
    try:
        yield
    finally:
        object_store.file_system().delete_file(object_store.key(path))


@contextmanager
def in_the_raw_zone(world: World) -> Iterator[None]:
    partition, offset = AT
    line = b'{"partition":%d,"offset":%d,"received_ms":0,"event":{"event_id":"e"}}\n' % (partition, offset)
    prefix = world.tenant.raw_prefix(load_settings().object_store.bucket, "orders")
    with planted(f"{prefix}/dt=2026-11-19/hr=12/left-0.jsonl.gz", gzip.compress(line)):
        yield


@contextmanager
def a_lost_file(world: World) -> Iterator[None]:
    location = registry.current_table(world.tenant, "orders").metadata_location
    table = iceberg.load_table((world.tenant.namespace, "orders"), location)
    path = next(iter(table.scan().plan_files())).file.file_path
    with object_store.file_system().open_input_file(object_store.key(path)) as source:
        content = source.read()
    object_store.file_system().delete_file(object_store.key(path))
    try:
        yield
    finally:
        object_store.put(path, content)


@pytest.mark.parametrize(
    ("harms", "expected"),
    [
        pytest.param(
            [mine("summaries", "DELETE FROM summaries WHERE {mine}")],
            {"orders: days that are not computed"},
            id="1: no rollups",
        ),
        pytest.param(
            [mine("landings", "UPDATE landings SET files = files + 500 WHERE {mine}")],
            {"upkeep that was not done"},
            id="1: no upkeep",
        ),
        pytest.param([mine("ingest_positions", REWOUND)], {"from nowhere", "never settled"}, id="2: rewound"),
        pytest.param([unclaimed("a")], {"orders: rows without a claim"}, id="2: claims"),
        pytest.param([claimed("never sent")], {"orders: claims without a row"}, id="2: an idle claim"),
        pytest.param(
            [without("b")],
            {"lost", "orders: claims without a row"},
            id="3: counted as landed",
        ),
        pytest.param(
            [
                without("a"),
                mine("dead_letters", DEAD),
                unclaimed("a"),
            ],
            {"a copy of nothing"},
            id="4: a copy of a dead letter",
        ),
        pytest.param(
            [mine("dead_letters", CLOSED)],
            {"a replayed dead letter of which nothing came"},
            id="5: closed by a replay",
        ),
        pytest.param(
            [mine("dead_letters", UNPUBLISHED)],
            {"double", "a dead letter that is not on its topic", "a dead letter for no reason"},
            id="a dead letter from nowhere",
        ),
        pytest.param(
            [a_lost_file], {"a table that cannot be read"}, id="8: a file that was read before is gone"
        ),
        pytest.param(
            [mine("dead_letters", SAYS_STILL)],
            {"erased, and still a dead letter"},
            id="9: a letter's payload",
        ),
        pytest.param(
            [lambda world: rewritten(world, with_erased)],
            {"orders: erased, and still a row", "orders: erased, and still in a file"},
            id="10: a row",
        ),
        pytest.param([in_the_raw_zone], {"erased, and still in the raw zone"}, id="10: a raw object"),
    ],
)
@pytest.mark.slow  # an episode of operators takes half a minute, and `make chaos` has many
def test_the_oracle_notices_the_traces_of_a_defect(
    world: World, harms: list[Harm], expected: set[str]
) -> None:
    with ExitStack() as done:
        for harm in harms:
            done.enter_context(harm(world))
        assert expected <= kinds(world)


@pytest.mark.slow  # an episode of operators takes half a minute, and `make chaos` has many
def test_the_oracle_notices_more_rows_than_the_quota(world: World) -> None:
    """6"""
    assert kinds(replace(world, quotas=[2, 3])) >= {"more rows than the quota"}


@pytest.mark.slow  # an episode of operators takes half a minute, and `make chaos` has many
def test_the_oracle_notices_erasures_without_a_request(world: World) -> None:
    assert kinds(replace(world, erasures_begun=set())) == {"erased, and no one asked for it"}


@pytest.mark.slow  # an episode of operators takes half a minute, and `make chaos` has many
def test_the_oracle_finds_nothing_once_all_harm_is_undone(world: World) -> None:
    assert kinds(replace(world, quotas=[4])) == set()


@pytest.mark.slow  # an episode of operators takes half a minute, and `make chaos` has many
def test_a_tenant_whose_events_do_not_settle_is_a_finding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7: a partition is gone for good; 2: its batches cannot be planned."""
    monkeypatch.setattr(closing, "DRAINS", 1)
    for harm in (mine("ingest_positions", UNKNOWN_PARTITION), mine("ingest_positions", TO_THE_FIRST)):
        with harm(world):
            closing_phase = Closing([world], lambda step: carry_out(step, [world.tenant]))
            closing_phase.drain()
            assert [finding.kind for finding in closing_phase.findings] == ["events that do not settle"]


def test_reconcile_has_to_agree_with_the_oracle() -> None:
    """8"""
    wrong, right = TenantReport("a", problems=[Problem("double_id", "dataset orders", 1)]), TenantReport("a")
    assert disagreement(right, []) == disagreement(wrong, [Finding("lost", "a", "1")]) == []
    assert [f.kind for f in disagreement(wrong, [])] == ["reconcile differs from the oracle"]
    assert [f.kind for f in disagreement(right, [Finding("lost", "a", "1")])] == [
        "reconcile differs from the oracle"
    ]


def test_an_id_may_land_again_once_its_claim_was_forgotten() -> None:
    """8: and not before."""
    row = {"id": "a", "schema_version": 1, "_extra": None, "country": "DE", "person": "p0", "timestamp": NOW}
    order = event("a", "orders")
    tenant = Tenant(uuid.uuid4(), "a")
    world = World(tenant, Rounds(tenant), bases={(0, 0): 0}, events={order.payload: order})
    world.arrived = {Place(0, 0, offset): Arrived(order.payload, None) for offset in (0, 1)}
    life = Life(uuid.uuid4(), "orders", NOW, EVER, None, {(0, at): [row] for at in (0, 1)})
    claims = Claims(seed=1)
    claims.digests.add(claims.digest("a"))
    evidence = Evidence({0: 2}, lives=[life], claims={life.dataset_id: claims})
    assert [finding.kind for finding in invariants.find_violations(world, evidence)] == ["orders: double ids"]
    world.forgets = [Progress(NOW, {0: 1}, {0: 1})]
    assert invariants.find_violations(world, evidence) == []
    world.forgets = [Progress(NOW, {0: 2}, {0: 2})]
    assert [finding.kind for finding in invariants.find_violations(world, evidence)] == ["orders: double ids"]


def test_only_a_lost_replay_explains_a_replayed_dead_letter_without_a_row() -> None:
    """5: that another event with its id was lost does not."""
    tenant, dead, other = Tenant(uuid.uuid4(), "a"), event("a", "orders", "fraction"), event("a", "orders")
    known = {event.payload: event for event in (dead, other)}
    world = World(
        tenant, Rounds(tenant, [(NOW, {})]), generation=1, bases={(0, 0): 0, (1, 0): 1}, events=known
    )
    letter = Letter("orders", "a", Reason.SCHEMA_VIOLATION, dead.payload, "replayed", NOW, NOW)
    evidence = Evidence({0: 1}, letters={(0, 0): letter}, published={(0, 0)})
    kind = "a replayed dead letter of which nothing came"
    for lost, reported in ((Arrived(other.payload, None), True), (Arrived(dead.payload, (0, 0)), False)):
        world.arrived = {Place(0, 0, 0): Arrived(dead.payload, None), Place(0, 0, 1): lost}
        assert (kind in {finding.kind for finding in invariants.find_violations(world, evidence)}) is reported


# a short part of `make chaos` --------------------------------------------------------------------


def send(tenant: int, slug: str, count: int, seed: int = SEED, **more: object) -> Step:
    return Step("send", tenant, {"slug": slug, "count": count, "seed": seed} | more)


SHORT = Schedule(
    SEED,
    (
        (
            *(send(0, "orders", 20), send(1, "clicks", 10), send(2, "orders", 8, seed=36)),
            replace(send(3, "orders", 5, still_s=0.0), action="collect"),
            Step("ingest", EVERYONE, after_s=1.0, blow=Blow("after.dedup_gate"), later=1),
        ),
        (
            Step("move", 0, {"slug": "orders", "version": 3}, blow=Blow("move.after_swap"), later=1),
            Step("lose", 1, {"how": "recreated", "partitions": [0, 1], "share": 1.0}, 0.5),
            Step("replay", 0, {"slug": "orders", "version": None, "limit": None}, 0.5),
            Step("accept", 1, after_s=1.0),
            Step("ingest", EVERYONE, after_s=1.5),
        ),
        (
            *(send(0, "orders", 10, seed=SEED + 1), send(1, "clicks", 6)),
            Step("erase", 0, {"slug": "orders", "person": "p1"}, 0.3, Blow("erase.after.rows"), 1),
            Step("backfill", 0, {"slug": "orders", "day": 0, "version": None}, 0.5, Blow(pause_s=0.5)),
            Step("discard", 2, {"slug": "orders", "limit": 2}),
            Step("delete", 3, {"slug": "clicks"}),
        ),
    ),
)


@pytest.mark.slow  # `make chaos` runs longer ones
def test_a_short_episode_of_operators_has_no_findings(stack: Settings) -> None:
    """Commands side by side, killed and repeated; all comes to its end, and is as it must be."""
    episode = operators.carried_out(SHORT)
    assert episode.findings == []
    killed = {place.partition(":")[0] for place in episode.places if place.endswith("killed")}
    assert killed == {"ingest", "move", "erase"}
