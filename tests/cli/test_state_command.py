"""`pulse state`: declared, shown, dropped."""

import json
from typing import Any

from support.here import ingest_here as ingest
from support.ingest import event, make_owner
from typer.testing import CliRunner

from pulse_api import cli
from pulse_resources.settings import Settings


def run(*arguments: object, plain: bool = False) -> Any:
    command_line = ["state", *map(str, arguments), *([] if plain else ["--json"])]
    answer = CliRunner().invoke(cli.app, command_line, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output if plain else json.loads(answer.stdout)


def test_a_state_from_its_declaration_to_its_end(stack: Settings) -> None:
    owner = make_owner()
    owner.send(event("a", country="DE", amount=0.5), event("b", country="FR"))
    ingest(owner)
    dataset = (owner.tenant.slug, "orders")
    state = run("declare", *dataset, "country", "--max-keys", 9)
    assert (state["latest_by"], state["keys"], state["max_keys"], state["complete"]) == (
        "country",
        2,
        9,
        True,
    )
    page = run("show", *dataset, "--after", "DE")
    assert [(row["key"], row["event_id"]) for row in page["state"]] == [("FR", "b")]
    assert "2 of at most 9 keys" in run("show", *dataset, plain=True)
    assert state["windows"] is None
    state = run("declare", *dataset, "country", "--sum", "amount", "--session-gap", "10m")
    assert (state["windows"]["sums"], state["windows"]["session_gap_s"]) == (["amount"], 600)
    of_key = ("show", *dataset, "--key", "DE", "--as-of", "2026-11-19T10:00:30Z")
    windows = run(*of_key)["windows"]
    assert (windows["to"], windows["windows"]["5m"]["sums"]) == ("2026-11-19T10:01:00Z", {"amount": 0.5})
    assert (windows["session"]["events"], windows["session"]["open"]) == (1, True)
    assert "amount 0.5" in run(*of_key, plain=True)
    assert "2 of at most 1,000,000 minutes" in run("show", *dataset, plain=True)
    assert run("drop", *dataset) == {"dropped": "country"}
