"""A move that takes a run, as those see it who ask for it: over HTTP, and on the command line."""

import json
import signal
import subprocess
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from support.here import ingest_here as ingest
from support.http import Caller
from support.ingest import SCHEMA, Owner, event
from support.lake import spark
from typer.testing import CliRunner

from chaos.surroundings import PULSE
from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli
from pulse_pipelines import moves, registry
from pulse_pipelines.moves import Move, MoveState
from pulse_pipelines.moves.record import Attempt
from pulse_pipelines.moves.run import attempt

pytestmark = pytest.mark.usefixtures("stack")

WIDENED = SCHEMA | {"properties": SCHEMA["properties"] | {"count": {"type": "number"}}}


def widened(owner: Owner) -> str:
    """A version that replaces a column of a table that has a row."""
    owner.send(event("a", count=1))
    ingest(owner)
    return registry.publish_schema(owner.tenant, "orders", json.dumps(WIDENED)).schema_uri


def under_way(owner: Owner) -> Move:
    """The move of the tenant's, once it is asked for."""
    wait(lambda: bool(moves.of_dataset(owner.tenant, "orders")), "nobody asked for the move")
    return moves.of_dataset(owner.tenant, "orders")[0]


def test_http_accepts_a_move_and_shows_it(caller: Caller, new_caller: Callable[..., Caller]) -> None:
    owner, uri = caller.owner, widened(caller.owner)
    answer = caller.http.post("/v1/datasets/orders/schema", json={"schema_uri": uri})
    assert answer.status_code == 202, answer.text
    where, move = answer.headers["Location"], answer.json()
    assert where == f"/v1/datasets/orders/moves/{move['move_id']}"
    assert (move["state"], move["files"], move["schema_uri"]) == ("planned", None, uri)
    again = caller.http.post("/v1/datasets/orders/schema", json={"schema_uri": uri})
    assert (again.status_code, again.json()["move"]) == (409, move["move_id"])
    stranger = new_caller().http
    assert stranger.get(where).status_code == 404
    assert stranger.get("/v1/datasets/orders/moves").json() == {"moves": []}
    assert caller.http.get(where.replace("orders", "others")).status_code == 404
    assert caller.http.get("/v1/datasets/orders").json()["schema_version"] == 1
    attempt(spark, owner.tenant, move["move_id"], 1)
    done = caller.http.get(where).json()
    assert (done["state"], done["files"], done["files_written"], done["error"]) == ("done", 1, 1, None)
    assert caller.http.get("/v1/datasets/orders/moves").json() == {"moves": [done]}
    assert caller.http.get("/v1/datasets/orders").json()["schema_uri"] == uri
    at_once = caller.http.post("/v1/datasets/orders/schema", json={"schema_uri": uri})
    assert (at_once.status_code, at_once.json()["schema_version"]) == (200, 2)


def followed(owner: Owner, end: Callable[[Move], object], *command: str) -> tuple[int, Any]:
    """The end of a command that follows a move which ends meanwhile."""
    results: list[Any] = []
    words = ["dataset", *command]
    # A daemon: were the move not ended, the command would follow it for ever.
    running = Thread(target=lambda: results.append(CliRunner().invoke(cli.app, words)), daemon=True)
    running.start()
    move = under_way(owner)
    assert running.is_alive(), "it waits"
    end(move)
    running.join(PATIENCE_S)
    (result,) = results
    return result.exit_code, result


def test_the_command_line_follows_a_move_to_its_end(owner: Owner) -> None:
    slug, uri = owner.tenant.slug, widened(owner)
    code, result = followed(
        owner, lambda move: attempt(spark, owner.tenant, move.move_id, 1), "move", slug, "orders", uri
    )
    assert (code, result.stdout) == (0, f"dataset orders follows {uri}\n")
    listed = CliRunner().invoke(cli.app, ["dataset", "moves", slug, "orders", "--json"])
    (move,) = json.loads(listed.stdout)
    assert (move["state"], move["files_done"]) == ("done", 1)
    again = CliRunner().invoke(cli.app, ["dataset", "follow", slug, "orders"])
    assert (again.exit_code, again.stdout) == (0, result.stdout)


def test_a_move_that_fails_ends_the_command_with_its_cause(owner: Owner) -> None:
    slug, uri = owner.tenant.slug, widened(owner)

    def fail(move: Move) -> None:
        with Attempt(owner.tenant, move.move_id, 1).hold(None):
            Attempt(owner.tenant, move.move_id, 1).fail("the test wants it")

    code, result = followed(owner, fail, "move", slug, "orders", uri)
    assert code == 1
    assert "the dataset did not move: the test wants it" in result.stderr
    assert registry.find_dataset(owner.tenant, "orders").schema_version == 1


def test_a_move_continues_after_an_interrupt_of_the_command(owner: Owner) -> None:
    slug, uri = owner.tenant.slug, widened(owner)
    command = [PULSE, "dataset", "move", slug, "orders", uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stderr is not None
        try:
            assert "rewrites the data files of orders" in following.stderr.readline()
            following.send_signal(signal.SIGINT)
            output = following.communicate(timeout=PATIENCE_S)
        finally:
            following.kill()  # one that follows still would do so for ever
    assert following.returncode == 130, output
    assert f"Follow it with: pulse dataset follow {slug} orders" in output[1]
    (move,) = moves.of_dataset(owner.tenant, "orders")
    assert move.state == MoveState.PLANNED
    attempt(spark, owner.tenant, move.move_id, 1)
