"""Reconcile finds what it is there to find: every kind of harm, with its kind, its count and its offsets."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pytest
from pyiceberg.expressions import EqualTo
from support.claims import IDS, changed_claims
from support.here import ingest_here as ingest
from support.ingest import Owner, event, make_owner
from support.lake import changed, harmed, pointing_at, row, superuser, table, with_file
from support.maintenance import objects
from typer.testing import CliRunner

from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.claims import claim_filters
from pulse_pipelines.erasure import run as erasure
from pulse_pipelines.maintenance.retention import expire_claims
from pulse_pipelines.monitoring.checks.reconciled import proven
from pulse_pipelines.monitoring.reconcile import reconcile_tenant
from pulse_pipelines.tables import raw_zone
from pulse_pipelines.tables.digests import Digests
from pulse_resources import object_store
from pulse_resources.settings import Settings, load_settings

Found = set[tuple[str, str, int, tuple[int, ...]]]


@pytest.fixture(scope="module")
def owner(stack: Settings) -> Owner:
    """Two settled ranges of partition 0.

    [0, 6): rows at 0 to 2, a duplicate at 3 and at 5, a dead letter at 4. [6, 8): a row and a dead letter.
    """
    owner = make_owner()
    owner.send(event("a"), event("b"), event("c"), event("a"), b"not json", event("b"))
    ingest(owner)
    owner.send(event('d, "an id"\r\n ☃'), b"not json either")
    ingest(owner)
    return owner


def actual(owner: Owner, *, raw: bool = False) -> Found:
    """The problems that there are."""
    report = reconcile_tenant(owner.tenant, raw=raw)
    assert report.balanced == (not report.problems)
    return {(p.kind, p.where, p.count, tuple(p.offsets)) for p in report.problems}


def reported(owner: Owner, *options: str, code: int = 1) -> Found:
    """The problems that `pulse reconcile <tenant> --json` reports, and its exit code."""
    command = ["reconcile", owner.tenant.slug, "--json", *options]
    result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert result.exit_code == code, result.output
    report = json.loads(result.stdout)
    (tenant,) = report["tenants"]
    assert report["balanced"] == tenant["balanced"] == (not tenant["problems"])
    return {(p["kind"], p["where"], p["count"], tuple(p["offsets"])) for p in tenant["problems"]}


ZERO = "partition 0"


def count(subject: str, ledger: int, off: int) -> tuple[str, str, int, tuple[int, ...]]:
    """The ledger says `ledger`; the evidence is `off` more."""
    return ("count", f"{subject}: ledger {ledger}", off, ())


def test_a_healthy_tenant_balances(owner: Owner) -> None:
    assert reported(owner, code=0) == set()
    assert reported(owner, "--raw", code=0) == set()
    report = reconcile_tenant(owner.tenant)
    numbers = (report.drained, report.landed, report.duplicates, report.dead_letters)
    assert (report.balanced, numbers) == (True, (8, 4, 2, 2))


def moved(owner: Owner) -> str:
    def move(orders: Any) -> None:
        rows = orders.scan(row_filter=EqualTo("_offset", 1)).to_arrow()
        index = rows.schema.get_field_index("_offset")
        orders.delete(EqualTo("_offset", 1))
        orders.append(rows.set_column(index, rows.schema.field(index), [[2]]))

    return changed(owner, move)


DOUBLED_A = ("double_id", "dataset orders: event ids in more than one row, such as 'a'", 1, ())
TABLES: dict[str, tuple[Callable[[Owner], str], Found]] = {
    "a row is gone": (
        lambda owner: changed(owner, lambda orders: orders.delete(EqualTo("_offset", 1))),
        {("missing", ZERO, 1, (1,)), count("rows", 4, -1)},
    ),
    "all rows are gone": (
        lambda owner: changed(owner, lambda orders: orders.delete()),
        {("missing", ZERO, 4, (0, 1, 2, 6)), count("rows", 4, -4)},
    ),
    "a row is there twice": (
        lambda owner: with_file(owner, row(owner)),
        {("double", ZERO, 1, (0,)), DOUBLED_A, count("rows", 4, 1)},
    ),
    "a duplicate has landed": (
        lambda owner: with_file(owner, row(owner, _offset=3)),
        {("double", ZERO, 1, (3,)), DOUBLED_A, count("rows", 4, 1)},
    ),
    "a dead letter has landed": (
        lambda owner: with_file(owner, row(owner, id="z", _offset=4)),
        {("double", ZERO, 1, (4,)), count("rows", 4, 1)},
    ),
    "a row has the place of another": (
        moved,
        {("missing", ZERO, 1, (1,)), ("double", ZERO, 1, (2,))},
    ),
    "a row is ahead of the position": (
        lambda owner: with_file(owner, row(owner, id="z", _offset=8)),
        {("unaccounted", ZERO, 1, (8,)), count("rows", 4, 1)},
    ),
    "a row is from nowhere": (
        lambda owner: with_file(owner, row(owner, id="z", _offset=-1)),
        {("unaccounted", ZERO, 1, (-1,)), count("rows", 4, 1)},
    ),
    "a row is of a partition that there is not": (
        lambda owner: with_file(owner, row(owner, id="z", _kafka_partition=7, _offset=0)),
        {("unaccounted", "partition 7", 1, (0,)), count("rows", 4, 1)},
    ),
}


@pytest.mark.parametrize("harm", TABLES)
def test_harm_to_the_table_is_reported(owner: Owner, harm: str) -> None:
    make, expected = TABLES[harm]
    with pointing_at(owner, make(owner)):
        assert actual(owner) == expected


def test_a_table_that_was_rolled_back_is_reported(owner: Owner) -> None:
    before = table(owner).metadata.metadata_log
    with pointing_at(owner, before[-1].metadata_file):
        assert actual(owner) == {("missing", ZERO, 1, (6,)), count("rows", 4, -1)}


def test_a_missing_data_file_is_reported_though_it_was_read_before(owner: Owner) -> None:
    assert actual(owner) == set()
    file_path = table(owner).inspect.data_files().column("file_path")[0].as_py()
    with object_store.file_system().open_input_file(object_store.key(file_path)) as file:
        content = file.read()
    object_store.file_system().delete_file(object_store.key(file_path))
    try:
        unreadable = [where for kind, where, *_ in actual(owner) if kind == "unreadable"]
        assert [file_path.rpartition("/")[2] in where for where in unreadable] == [True]
    finally:
        object_store.put(file_path, content)
    assert actual(owner) == set()


def test_a_missing_table_is_reported(owner: Owner) -> None:
    lost = {("missing", ZERO, 4, (0, 1, 2, 6)), count("rows", 4, -4)}
    with harmed(
        owner, "iceberg_catalog.iceberg_tables", "DELETE FROM iceberg_catalog.iceberg_tables WHERE {mine}"
    ):
        assert actual(owner) == lost
    with pointing_at(owner, "s3://pulse/gone.metadata.json"):
        problems = actual(owner)
    (unreadable,) = problems - lost
    assert problems > lost
    assert unreadable[0] == "unreadable"
    assert "gone.metadata.json" in unreadable[1]


RAW: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "gone": (lambda content: None, "the object is gone"),
    "short": (lambda content: content[:-1], "the object ends 1 bytes before the end of the part"),
    "garbled": (lambda content: content[:40] + b"garbled" + content[47:], "the part is damaged: "),
}


@pytest.mark.parametrize("harm", RAW)
@pytest.mark.parametrize("raw", [False, True], ids=["some", "all"])
def test_harm_to_the_raw_zone_is_reported(owner: Owner, harm: str, raw: bool) -> None:
    with superuser() as connection:
        ((path, events),) = connection.execute(
            "SELECT path, events FROM raw_objects WHERE tenant_id = %s ORDER BY events DESC LIMIT 1",
            [owner.tenant.tenant_id],
        )
    change, why = RAW[harm]
    content = raw_zone.content(path)
    changed = change(content)
    object_store.file_system().delete_file(object_store.key(path))
    if changed is not None:
        object_store.put(path, changed)
    try:
        problems = {problem for problem in actual(owner, raw=raw) if problem[0] == "raw"}
    finally:
        object_store.put(path, content)
    ((_, where, count, _),) = problems
    assert where.startswith("dataset orders, 2026-")
    assert f"raw object {path}: {why}" in where
    assert count == events
    assert actual(owner, raw=raw) == set()


def test_a_line_that_the_raw_zone_lacks_is_reported(owner: Owner) -> None:
    with harmed(owner, "raw_objects", "UPDATE raw_objects SET events = events + 1 WHERE {mine}"):
        problems = actual(owner)
    assert {kind for kind, *_ in problems} == {"raw"}
    assert all(where.endswith(f"the part has {count - 1} lines") for _, where, count, _ in problems)


RANGES = "ingest_ranges"
LEDGER: dict[str, tuple[str, str, Found]] = {
    "a dead letter is gone": (
        "dead_letters",
        "DELETE FROM dead_letters WHERE {mine} AND event_offset = 4",
        {("missing", ZERO, 1, (4,)), count("dead letters", 2, -1)},
    ),
    "a dead letter moved onto a row": (
        "dead_letters",
        "UPDATE dead_letters SET event_offset = 0 WHERE {mine} AND event_offset = 4",
        {("missing", ZERO, 1, (4,)), ("double", ZERO, 1, (0,))},
    ),
    "more landed than there are rows": (
        RANGES,
        "UPDATE ingest_ranges SET landed = 4, drained = drained + 1 WHERE {mine} AND start_offset = 0",
        {count("rows", 5, -1), count("drained", 9, -1)},
    ),
    "more duplicates than were recorded": (
        RANGES,
        "UPDATE ingest_ranges SET duplicates = 3, drained = drained + 1 WHERE {mine} AND start_offset = 0",
        {count("duplicates", 3, -1), count("drained", 9, -1)},
    ),
    "more dead letters than there are": (
        RANGES,
        "UPDATE ingest_ranges SET dead_letters = 2, drained = drained + 1 WHERE {mine} AND start_offset = 0",
        {count("dead letters", 3, -1), count("drained", 9, -1)},
    ),
    "a row is counted as a duplicate": (
        RANGES,
        "UPDATE ingest_ranges SET landed = 2, duplicates = 3 WHERE {mine} AND start_offset = 0",
        {count("rows", 3, 1), count("duplicates", 3, -1)},
    ),
    "duplicates are forgotten": (
        RANGES,
        "UPDATE ingest_ranges SET duplicate_offsets = '{{}}' WHERE {mine} AND start_offset = 0",
        {("missing", ZERO, 2, (3, 5)), count("duplicates", 2, -2)},
    ),
    "a row is said to be absent": (
        RANGES,
        "UPDATE ingest_ranges SET absent_offsets = '{{[1,2)}}' WHERE {mine} AND start_offset = 0",
        {("double", ZERO, 1, (1,)), count("drained", 8, -1)},
    ),
    "the first range is gone": (
        RANGES,
        "DELETE FROM ingest_ranges WHERE {mine} AND start_offset = 0",
        {
            ("gap", "partition 0: a settled range begins at 6", 6, ()),
            ("missing", ZERO, 2, (3, 5)),
            count("rows", 1, 3),
            count("dead letters", 1, 1),
        },
    ),
    "the last range is gone": (
        RANGES,
        "DELETE FROM ingest_ranges WHERE {mine} AND start_offset = 6",
        {
            ("gap", "partition 0: the ledger ends at 6", 2, ()),
            count("rows", 3, 1),
            count("dead letters", 1, 1),
        },
    ),
    "a range is not settled after all": (
        RANGES,
        "UPDATE ingest_ranges SET settled_at = NULL WHERE {mine} AND start_offset = 6",
        {
            ("gap", "partition 0: the ledger ends at 6", 2, ()),
            count("rows", 3, 1),
            count("dead letters", 1, 1),
        },
    ),
    "ranges overlap": (
        RANGES,
        "UPDATE ingest_ranges SET end_offset = 7 WHERE {mine} AND start_offset = 0",
        {("gap", "partition 0: a settled range begins at 6", -1, ()), count("drained", 8, 1)},
    ),
    "the position fell back": (
        "ingest_positions",
        "UPDATE ingest_positions SET settled_offset = 6 WHERE {mine} AND partition = 0",
        {("gap", "partition 0: the ledger ends at 8", -2, ()), ("unaccounted", ZERO, 2, (6, 7))},
    ),
    "the position ran ahead": (
        "ingest_positions",
        "UPDATE ingest_positions SET settled_offset = 9, planned_offset = 9 WHERE {mine} AND partition = 0",
        {("gap", "partition 0: the ledger ends at 8", 1, ()), ("missing", ZERO, 1, (8,))},
    ),
    "the position is gone": (
        "ingest_positions",
        "DELETE FROM ingest_positions WHERE {mine} AND partition = 0",
        {
            ("gap", "partition 0: the ledger ends at 8", -8, ()),
            ("unaccounted", ZERO, 8, (0, 1, 2, 6, 4, 7, 3, 5)),
        },
    ),
}


@pytest.mark.parametrize("harm", LEDGER)
def test_harm_to_the_ledger_is_reported(owner: Owner, harm: str) -> None:
    name, statement, expected = LEDGER[harm]
    with harmed(owner, name, statement):
        assert by_offset(actual(owner)) == by_offset(expected)


D = 'd, "an id"\r\n ☃'


def unclaimed(*offsets: int) -> tuple[str, str, int, tuple[int, ...]]:
    return ("unclaimed", "dataset orders, partition 0: rows whose id is not claimed", len(offsets), offsets)


def idle_claims(number: int) -> tuple[str, str, int, tuple[int, ...]]:
    return ("idle_claim", "dataset orders: claims without a row", number, ())


CLAIMS: dict[str, tuple[dict[str, list[str]], Found]] = {
    "claims are gone": ({"lost": ["a", "b"]}, {unclaimed(0, 1)}),
    "a claim is of another id": ({"lost": [D], "got": ["other"]}, {unclaimed(6), idle_claims(1)}),
    "dead letters have claims": ({"got": ["x", "y"]}, {idle_claims(2)}),
}


@pytest.mark.parametrize("harm", CLAIMS)
def test_harm_to_the_claims_is_reported(owner: Owner, harm: str) -> None:
    change, expected = CLAIMS[harm]
    with harmed(owner, IDS, changed_claims(owner, **change)):
        assert actual(owner) == expected


def test_a_torn_run_is_reported(owner: Owner) -> None:
    """Its first bytes are others; what Postgres itself would refuse is tried first."""
    short = f"UPDATE {IDS} SET digests = substring(digests FROM 2) WHERE {{mine}}"
    with pytest.raises(psycopg.errors.CheckViolation), harmed(owner, IDS, short):
        pass
    torn = f"UPDATE {IDS} SET digests = overlay(digests PLACING '\\xff00' FROM 1 FOR 2) WHERE {{mine}}"
    with harmed(owner, IDS, torn):
        kinds = {kind for kind, *_ in actual(owner)}
    assert kinds == {"unclaimed", "idle_claim"}


@pytest.mark.parametrize("harm", ["none", "lacking", "torn"])
def test_a_filter_of_another_run_is_reported(owner: Owner, harm: str) -> None:
    """Small runs have none, so they are given one; what lacks an id has the checksum of a filter."""
    with superuser() as connection:
        query = f"SELECT run, digests FROM {IDS} WHERE tenant_id = %s ORDER BY ids DESC"
        (number, packed), *_ = connection.execute(query, [owner.tenant.tenant_id]).fetchall()
    run = Digests.unpacked(packed)
    lacking = run[np.arange(len(run)) // 2]
    planted = {"none": claim_filters.make(run), "lacking": claim_filters.make(lacking), "torn": b"torn"}[harm]
    where = f"dataset orders: filters of the runs of claims {number}"
    with harmed(owner, IDS, f"UPDATE {IDS} SET filter = '\\x{planted.hex()}' WHERE run = {number}"):
        assert actual(owner) == (set() if harm == "none" else {("wrong_filter", where, 1, ())})


def test_a_problem_without_a_repair_command_has_advice(owner: Owner) -> None:
    with harmed(owner, IDS, changed_claims(owner, lost=[D], got=["other"])):
        printed = " ".join(CliRunner().invoke(cli.app, ["reconcile", owner.tenant.slug]).output.split())
        checked = " ".join(proven("orders", reconcile_tenant(owner.tenant)).problems)
    for text in (printed, checked):
        assert "do not send these events again: each would land a second time" in text
        assert "one that has to land is sent again under another event id" in text


def test_ids_of_erased_events_stay_claimed(new_owner: Callable[[], Owner]) -> None:
    owner = new_owner()
    owner.send(event("x", country="ADA"), event("y"))
    ingest(owner)
    erasure.erase(owner.tenant, "orders", "country=ADA")
    assert actual(owner) == set()
    with harmed(owner, IDS, changed_claims(owner, lost=["x"])):
        where = "dataset orders: erased rows whose id is not claimed"
        assert actual(owner) == {("unclaimed", where, 1, ())}


def test_an_id_that_was_forgotten_may_land_again(new_owner: Callable[[], Owner]) -> None:
    owner = new_owner()
    for _ in range(2):
        owner.send(event("a"), event("b"))
        ingest(owner)
        with superuser() as connection:
            old = (
                f"UPDATE {IDS} SET claimed_on = current_date - 3 WHERE tenant_id = %s AND ends = %s::bigint[]"
            )
            connection.execute(old, [owner.tenant.tenant_id, [2]])
        expire_claims(owner.tenant, 2)
    assert [row["id"] for row in owner.rows()] == ["a", "b", "a", "b"]
    assert actual(owner) == set()
    with harmed(owner, IDS, changed_claims(owner, lost=["b"])):
        assert actual(owner) == {unclaimed(3)}
    with pointing_at(owner, with_file(owner, row(owner, _offset=4))):
        assert DOUBLED_A in actual(owner)


def test_duplicates_of_erased_events_are_not_lost_with_the_dataset(
    new_owner: Callable[[], Owner],
) -> None:
    owner = new_owner()
    owner.send(event("x", country="ADA"), event("y"))
    ingest(owner)
    erasure.erase(owner.tenant, "orders", "country=ADA")
    owner.send(event("x", country="ADA"), event("y"))
    ingest(owner)
    assert actual(owner, raw=True) == set()
    registry.delete_dataset(owner.tenant, "orders")
    assert actual(owner, raw=True) == set()


def test_duplicates_reveal_an_event_without_a_row(new_owner: Callable[[], Owner]) -> None:
    """All of it was judged a copy of what then became a dead letter."""
    owner = new_owner()
    owner.send(event("x", country=7), event("x"), event("x"), event("y"), event("y"))
    batch = ingest(owner)
    copies = "landed = 1, duplicates = 3, duplicate_offsets = '{{[1,3),[4,5)}}'"
    where = "dataset orders, partition 0: duplicates of events that have no row"
    lost = ("lost", where, 2, (1, 2))
    with (
        pointing_at(owner, changed(owner, lambda orders: orders.delete(EqualTo("_offset", 1)))),
        harmed(owner, RANGES, f"UPDATE {RANGES} SET {copies} WHERE {{mine}}"),
        harmed(owner, IDS, changed_claims(owner, lost=["x"])),
    ):
        assert actual(owner, raw=True) == {lost}
        assert actual(owner) == set(), "it would have to read the whole raw zone"
        with superuser() as connection:
            connection.execute("UPDATE ingest_batches SET attempt = 2 WHERE batch_id = %s", [batch])
        assert actual(owner) == {lost}, "reconcile always reads a repeated batch"
        with harmed(owner, "dead_letters", "UPDATE dead_letters SET reason = 'landing_failed' WHERE {mine}"):
            assert actual(owner) == set(), "the letter is the event, and can be replayed"
        bucket = load_settings().object_store.bucket
        damaged, *deleted = sorted(objects(owner.tenant.raw_prefix(bucket, "orders")))
        object_store.put(damaged, b"no gzip")
        for path in deleted:
            object_store.file_system().delete_file(object_store.key(path))
        wheres = {where.split(": ")[0] for kind, where, *_ in actual(owner, raw=True) if kind == "unreadable"}
        assert wheres == {f"raw object {path}" for path in (damaged, *deleted)}


def by_offset(problems: Found) -> Found:
    return {(kind, where, count, tuple(sorted(offsets))) for kind, where, count, offsets in problems}


def test_the_command_prints_kind_and_place_of_each_problem(owner: Owner) -> None:
    with harmed(owner, "dead_letters", "DELETE FROM dead_letters WHERE {mine} AND event_offset = 4"):
        result = CliRunner().invoke(cli.app, ["reconcile", owner.tenant.slug])
        assert ("missing", ZERO, 1, (4,)) in reported(owner)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert f"missing tenant {owner.tenant.slug}, partition 0: 1, offsets 4" in text


def test_one_tenant_s_harm_is_not_another_s(owner: Owner, stack: Settings) -> None:
    other = make_owner()
    with harmed(owner, "dead_letters", "DELETE FROM dead_letters WHERE {mine} AND event_offset = 4"):
        reports = [reconcile_tenant(tenant) for tenant in (other.tenant, owner.tenant)]
    assert [(r.tenant, r.balanced) for r in reports] == [
        (other.tenant.slug, True),
        (owner.tenant.slug, False),
    ]


def test_only_the_first_offsets_are_named_but_all_are_counted(owner: Owner) -> None:
    statement = (
        "UPDATE ingest_positions SET settled_offset = 58, planned_offset = 58 WHERE {mine} AND partition = 0"
    )
    with harmed(owner, "ingest_positions", statement):
        problems = actual(owner)
    assert ("missing", ZERO, 50, tuple(range(8, 18))) in problems
