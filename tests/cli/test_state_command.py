"""`pulse state`: declared, shown, dropped."""

import json
from typing import Any

from support.ingest import event, ingest, make_owner
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
    owner.send(event("a", country="DE"), event("b", country="FR"))
    ingest(owner)
    where = (owner.tenant.slug, "orders")
    made = run("declare", *where, "country", "--max-keys", 9)
    assert (made["latest_by"], made["keys"], made["max_keys"], made["complete"]) == ("country", 2, 9, True)
    shown = run("show", *where, "--after", "DE")
    assert [(each["key"], each["event_id"]) for each in shown["state"]] == [("FR", "b")]
    assert "2 of at most 9 keys" in run("show", *where, plain=True)
    assert run("drop", *where) == {"dropped": "country"}
