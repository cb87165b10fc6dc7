"""`pulse collect --wait` waits for what it sent, `pulse tail` prints rows as they land."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from support.backfill import rebuilt
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from typer.testing import CliRunner

from chaos.surroundings import PULSE
from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli
from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.erasure.run import erase
from pulse_pipelines.monitoring.trace import sent
from pulse_pipelines.query import tail
from pulse_pipelines.registry import keys

pytestmark = pytest.mark.usefixtures("stack")


@pytest.fixture
def key(api_service: str, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> str:
    text = keys.issue_key(owner.tenant, "test", [KeyScope.COLLECT]).text
    monkeypatch.setenv("PULSE_KEY", text)
    return text


def collected(owner: Owner, file: Path, *options: str) -> tuple[int, Any]:
    """`pulse collect --wait`, with a batch that runs as soon as the events are in the topic."""
    command = ["collect", owner.tenant.slug, str(file), "--wait", "--json", *options]
    before = sent.marks(owner.tenant)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(CliRunner().invoke, cli.app, command)
        wait(lambda: sent.marks(owner.tenant) != before, "nothing was sent")
        assert not running.done(), "it waits"
        ingest(owner)
        result = running.result(timeout=PATIENCE_S)
    return result.exit_code, json.loads(result.stdout)


def test_collect_wait_succeeds_when_all_events_have_landed(owner: Owner, key: str, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"\n".join(event(f"e{number % 40}") for number in range(50)))
    code, summary = collected(owner, file)
    assert (code, summary["accepted"]) == (0, 50)
    assert (summary["landed"], summary["not_landed"], summary["fates"]) == (40, 0, [])


def test_collect_wait_names_the_events_that_did_not_land(owner: Owner, key: str, tmp_path: Path) -> None:
    uri = registry.find_dataset(owner.tenant, "orders").schema_uri
    registry.create_dataset(owner.tenant, "lenient", uri, on_invalid=OnInvalid.DEAD_LETTER)
    file = tmp_path / "events.ndjson"
    lines = [event("good"), event("bad", dataset="lenient", country=7), event("refused", country=7)]
    file.write_bytes(b"\n".join(lines))
    code, summary = collected(owner, file)
    assert (code, summary["landed"], summary["not_landed"], summary["refused"]) == (1, 1, 1, 1)
    (fate,) = summary["fates"]
    assert (fate["event_id"], fate["dataset"], fate["state"]) == ("bad", "lenient", "dead_lettered")
    assert "schema_violation at /data/country" in fate["detail"]


def test_collect_wait_ends_at_its_timeout(owner: Owner, key: str) -> None:
    command = ["collect", owner.tenant.slug, "--wait", "--timeout", "1s"]
    result = CliRunner().invoke(cli.app, command, event("a"))
    assert result.exit_code == 1
    assert "1 event of the tenant's topic, by any sender, is not settled yet (sent now: 1)" in result.stderr
    owner.send(event("of"), event("others"))
    result = CliRunner().invoke(cli.app, command, event("b"))
    assert "4 events of the tenant's topic, by any sender, are not settled yet (sent now: 1)" in result.stderr
    assert f"pulse trace {owner.tenant.slug}" in result.stderr


def ids(rows: Any) -> list[str]:
    return rows.column("id").to_pylist()


def test_rows_are_printed_once_in_the_order_in_which_they_land(owner: Owner) -> None:
    owner.send(event("before"))
    ingest(owner)
    steps: list[Callable[[], object]] = [
        lambda: land(owner, "a", "b"),
        lambda: None,
        lambda: rebuilt(owner),  # rows that are written again
        lambda: (land(owner, "c"), land(owner, "d")),
    ]
    landed = tail.follow(owner.tenant, "orders", pause=lambda: steps.pop(0)())
    assert [ids(next(landed)) for _ in range(3)] == [["a", "b"], ["c"], ["d"]]


def test_an_erasure_hides_no_printed_rows(owner: Owner) -> None:
    owner.send(event("before"), event("erased"))
    ingest(owner)
    steps: list[Callable[[], object]] = [
        lambda: (land(owner, "a"), erase(owner.tenant, "orders", "event_id=erased"), land(owner, "b")),
        lambda: (land(owner, "c"), erase(owner.tenant, "orders", "event_id=before")),
        lambda: erase(owner.tenant, "orders", "event_id=a"),
        lambda: land(owner, "d"),
    ]
    landed = tail.follow(owner.tenant, "orders", pause=lambda: steps.pop(0)())
    assert [ids(next(landed)) for _ in range(3)] == [["a", "b"], ["c"], ["d"]]


def land(owner: Owner, *event_ids: str) -> None:
    owner.send(*map(event, event_ids))
    ingest(owner)


@contextmanager
def tailing(owner: Owner) -> "Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]":
    """`pulse tail` that waits for rows; its output, and what it says of itself."""
    command = [PULSE, "tail", owner.tenant.slug, "orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        try:
            assert "Waiting for rows of orders" in following.stderr.readline()
            yield following, following.stdout, following.stderr
        finally:
            following.kill()


def test_tail_ends_when_its_output_is_closed(owner: Owner) -> None:
    """As in `pulse tail ... | head -1`: it waited for another row, to find out."""
    with tailing(owner) as (following, printed, stderr):
        printed.close()
        assert (following.wait(timeout=PATIENCE_S), stderr.read()) == (141, "")


def test_the_command_prints_until_it_is_interrupted(owner: Owner) -> None:
    with tailing(owner) as (following, printed, stderr):
        land(owner, "a")
        assert printed.readline().split()[-2:] == ["a", '{"country":"DE"}']
        following.send_signal(signal.SIGINT)
        assert (following.wait(timeout=PATIENCE_S), stderr.read()) == (130, "")
