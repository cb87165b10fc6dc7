"""Turns: a run gives up its place when others wait, whatever the server does that it waits for."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from support.entities import as_model, make_entities, pages
from support.files import Answer, web
from support.ingest import Owner
from support.lake import spark
from support.pipes import settle
from test_feeds import PIPE, Service, counts

from chaos.sources import SOURCE, capturing, stored_source
from chaos.waiting import PATIENCE_S
from pulse_pipelines import pipes
from pulse_pipelines.defs.pipes.places import WAY, place_tags, waiting_others, way_of
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.domain.syncs import SyncState
from pulse_pipelines.entities import syncs
from pulse_pipelines.pipes import watch
from pulse_pipelines.pipes.run import Sent, run
from pulse_pipelines.pipes.turns import OthersWait, no_one_waits
from pulse_resources.errors import Transient
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import load_settings, override_settings
from pulse_resources.settings.pipe_settings import PipeSettings

ROOT = Path(__file__).parents[2]
FILE: dict[str, Any] = {"pipe": "planes", "source": "shop", "path": "a.ndjson", "dataset": "copies"}
DRIP_S = 0.02
"""Between two bytes of an answer that never ends."""


class Hostile:
    """A server that answers as another does, until it is to keep who asks waiting."""

    def __init__(self, service: Any) -> None:
        self.service, self.requests = service, 0
        self.keeps_waiting_at: int | None = None
        """Number of the request that it never answers to the end; all are counted."""
        self.is_endless = False
        """Whether it answers none to the end."""
        self.is_waited_for = threading.Event()

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        self.requests += 1
        status, answer_headers, body = self.service(method, path, headers)
        if self.requests != self.keeps_waiting_at and not self.is_endless:
            return status, answer_headers, body
        return status, {**answer_headers, "Content-Length": str(10**9)}, self._drip(body)

    def _drip(self, body: bytes) -> Iterator[bytes]:
        yield body
        self.is_waited_for.set()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            yield b" "
            time.sleep(DRIP_S)


@contextmanager
def turns(**seconds: float) -> Iterator[None]:
    """Runs have these turns, and are watched all the time."""
    settings = PipeSettings(watch_seconds=0.05, **{"turn_seconds": 0, "give_way_seconds": 300} | seconds)
    with override_settings(load_settings().model_copy(update={"pipes": settings})):
        yield


def take_turn(owner: Owner, hostile: Hostile) -> Sent:
    """A run that others wait for as soon as the server keeps it waiting."""
    with turns():
        return once_alone(owner, hostile.is_waited_for.is_set)


def once_alone(owner: Owner, others_wait: OthersWait = no_one_waits) -> Sent:
    """A run, as soon as the tasks of the run before have ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return run(spark(), owner.tenant, "planes", 2, others_wait=others_wait)
        except Transient as error:
            if "still in flight" not in error.message or time.monotonic() > deadline:
                raise
            settle(owner)


def latest(owner: Owner) -> set[str]:
    contents = dict(as_model(pages(owner, slug="copies")))
    return {key for key, content in contents.items() if content is not None}


def test_a_feed_read_from_its_start_gives_way_and_continues_as_one_sync(owner: Owner) -> None:
    hostile = Hostile(service := Service())
    for name in "ABCDEFG":
        service.add(name, x=1)
    with web(hostile) as address, stored_source(owner.tenant, address):
        pipes.create(owner.tenant, definition(PIPE))
        syncs.allow(owner.tenant, "copies", 0.5)
        hostile.keeps_waiting_at = hostile.requests + 3
        first = take_turn(owner, hostile)
        assert (first.is_full, first.rows, first.more) == (True, 4, True), "two pages were whole"
        settle(owner)
        assert counts(owner)[0] == SyncState.OPEN
        assert latest(owner) == set("ABCD")
        assert [pipe.name for pipe in pipes.due() if pipe.tenant == owner.tenant] == ["planes"]
        second = run(spark(), owner.tenant, "planes", 2)
        assert (second.is_full, second.rows, second.more) == (True, 3, False)
        assert second.sync_id == first.sync_id
        settle(owner)
        assert counts(owner) == (SyncState.DONE, 7, 0, 0, 0)
        assert not [pipe for pipe in pipes.due() if pipe.tenant == owner.tenant]

        service.generation, service.log = 2, service.log[:5]  # all anew, and two are gone
        hostile.is_waited_for.clear()
        hostile.keeps_waiting_at = hostile.requests + 3  # the first tells that it begins anew
        assert take_turn(owner, hostile).rows == 2
        settle(owner)
        assert latest(owner) == set("ABCDEFG"), "nothing is deleted before all is read"
        assert run(spark(), owner.tenant, "planes", 2).rows == 3
        settle(owner)
        assert counts(owner) == (SyncState.DONE, 0, 0, 5, 2)


@pytest.mark.slow
def test_a_feed_gives_way_after_its_last_whole_page_and_without_one_it_fails(owner: Owner) -> None:
    hostile = Hostile(service := Service())
    service.add("A", x=1)
    with web(hostile) as address, stored_source(owner.tenant, address):
        pipes.create(owner.tenant, definition(PIPE))
        run(spark(), owner.tenant, "planes", 2)
        settle(owner)
        behind = pipes.find(owner.tenant, "planes").lag_seconds
        for name in "BCDE":
            service.add(name, x=1)
        hostile.keeps_waiting_at = hostile.requests + 3  # the first only asks whether it goes on
        assert take_turn(owner, hostile).rows == 2
        settle(owner)
        assert (counts(owner)[0], latest(owner)) == (SyncState.DONE, set("ABC"))
        after = pipes.find(owner.tenant, "planes").lag_seconds
        assert (after or 0) > (behind or 0) > 0, "it is as far behind as before"
        hostile.keeps_waiting_at = hostile.requests + 2
        with pytest.raises(Transient, match="has not sent a page") as error:
            take_turn(owner, hostile)
        assert error.value.where["bytes"]
        assert "has not sent a page" in (pipes.find(owner.tenant, "planes").error or "")
        assert run(spark(), owner.tenant, "planes", 2).rows == 2
        settle(owner)
        assert latest(owner) == set("ABCDE")


@pytest.mark.slow  # the turns of other runs are tried above and below
def test_only_one_run_that_cannot_continue_later_exceeds_its_turn(owner: Owner) -> None:
    body = json.dumps({"_id": "A", "x": 1}).encode() + b"\n"
    hostile = Hostile(lambda *_: (200, {"ETag": '"1"'}, body))
    with web(hostile) as address, stored_source(owner.tenant, address):
        make_entities(owner, "copies")
        pipes.create(owner.tenant, definition(FILE))
        hostile.is_endless = True
        with (
            locks.session(Lock.LONG_PIPE, "all"),
            pytest.raises(Transient, match="another run continues beyond its turn"),
        ):
            take_turn(owner, hostile)
        settle(owner)
        hostile.is_waited_for.clear()
        with pytest.raises(Transient, match="less than 100 rows a second") as error:
            take_turn(owner, hostile)
        assert {"rows", "seconds"} <= set(error.value.where)
        settle(owner)
        assert counts(owner)[0] == SyncState.FAILED
        hostile.is_endless = False
        with turns():
            once_alone(owner)
        settle(owner)
        assert latest(owner) == {"A"}


def test_a_run_without_progress_ends_even_without_waiting_runs(owner: Owner) -> None:
    hostile = Hostile(lambda *_: (200, {"ETag": '"1"'}, b'{"_id": "A"}\n'))
    with web(hostile) as address, stored_source(owner.tenant, address):
        make_entities(owner, "copies")
        pipes.create(owner.tenant, definition(FILE))
        hostile.is_endless = True
        with turns(silent_seconds=0.5), pytest.raises(Transient, match="nothing came of the run"):
            run(spark(), owner.tenant, "planes", 2)


def test_a_source_that_goes_silent_ends_the_watch_of_it_and_a_run(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ANSWER_S", 1.0)
    pipe = {"pipe": "planes", "source": SOURCE, "table": "planes", "mode": "changes", "dataset": "copies"}
    with capturing(owner.tenant) as source:
        source.execute("CREATE TABLE planes (tail text PRIMARY KEY); INSERT INTO planes VALUES ('N1')")
        pipes.create(owner.tenant, definition(pipe))
        run(spark(), owner.tenant, "planes", 2)
        settle(owner)
        pipe_now = pipes.find(owner.tenant, "planes")
        assert [error for _, error in watch.watch([pipe_now])] == [None]
        with source.transaction():
            source.execute("LOCK pg_publication IN ACCESS EXCLUSIVE MODE")  # whoever reads it waits
            assert ["in time" in str(error) for _, error in watch.watch([pipe_now])] == [True]
            with turns(silent_seconds=0.5), pytest.raises(Transient, match="nothing came of the run"):
                run(spark(), owner.tenant, "planes", 2)
        assert [error for _, error in watch.watch([pipe_now])] == [None]


def test_a_run_waits_for_a_place_of_another_tenant_unless_it_waits_for_its_own() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("pulse"), "repository")
        origin = RemoteJobOrigin(place, "nothing")

        def waits() -> bool:
            return waiting_others(instance, "ours", "in")()

        def add(tenant: str, way: str, status: dg.DagsterRunStatus) -> None:
            tags = dict(place_tags(tenant, way))
            instance.create_run_for_job(nothing, status=status, tags=tags, remote_job_origin=origin)

        add("ours", "in", dg.DagsterRunStatus.STARTED)
        add("ours", "in", dg.DagsterRunStatus.QUEUED)
        add("theirs", "out", dg.DagsterRunStatus.QUEUED)
        add("busy", "in", dg.DagsterRunStatus.STARTED)
        add("busy", "in", dg.DagsterRunStatus.QUEUED)
        assert not waits()
        add("theirs", "in", dg.DagsterRunStatus.QUEUED)
        assert waits()


def test_a_transform_takes_no_place_of_those_that_bring_something_in() -> None:
    of = {"pipe": "any", "dataset": "any"}
    ways = {
        way_of(definition(of | {"transform": "SELECT _id FROM planes"})): "computed",
        way_of(definition(of | {"source": "src", "table": "public.planes"})): "in",
    }
    assert ways == {"computed": "computed", "in": "in"}
    configuration = yaml.safe_load((ROOT / "dagster_home/dagster.yaml").read_text())
    limits = configuration["concurrency"]["runs"]["tag_concurrency_limits"]
    assert {limit["value"] for limit in limits if limit["key"] == WAY} == {"in", "out", "computed"}


@dg.job
def nothing() -> None:
    """A job that is never executed here."""
