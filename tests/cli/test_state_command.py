"""`pulse state`: declared, shown, dropped."""

import json
from typing import Any

from support.here import ingest_here as ingest
from support.ingest import event, make_owner
from typer.testing import CliRunner

from pulse_api import cli
from pulse_resources.settings import Settings


def run(*arguments: object, plain: bool = False) -> Any:
    given = ["state", *map(str, arguments), *([] if plain else ["--json"])]
    answer = CliRunner().invoke(cli.app, given, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output if plain else json.loads(answer.stdout)


def test_a_state_from_its_declaration_to_its_end(stack: Settings) -> None:
    owner = make_owner()
    owner.send(event("a", country="DE", amount=0.5), event("b", country="FR"))
    ingest(owner)
    where = (owner.tenant.slug, "orders")
    made = run("declare", *where, "country", "--max-keys", 9)
    assert (made["latest_by"], made["keys"], made["max_keys"], made["complete"]) == ("country", 2, 9, True)
    shown = run("show", *where, "--after", "DE")
    assert [(each["key"], each["event_id"]) for each in shown["state"]] == [("FR", "b")]
    assert "2 of at most 9 keys" in run("show", *where, plain=True)
    assert made["windows"] is None
    made = run("declare", *where, "country", "--sum", "amount", "--session-gap", "10m")
    assert (made["windows"]["sums"], made["windows"]["session_gap_s"]) == (["amount"], 600)
    of_key = ("show", *where, "--key", "DE", "--as-of", "2026-11-19T10:00:30Z")
    found = run(*of_key)["windows"]
    assert (found["to"], found["windows"]["5m"]["sums"]) == ("2026-11-19T10:01:00Z", {"amount": 0.5})
    assert (found["session"]["events"], found["session"]["open"]) == (1, True)
    assert "amount 0.5" in run(*of_key, plain=True)
    assert "2 of at most 1,000,000 minutes" in run("show", *where, plain=True)
    assert run("drop", *where) == {"dropped": "country"}
