"""docs/ask.md: every command of it, and its client, against the real server."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.docs import blocks, run_as
from support.here import ingest_here as ingest
from support.http import Api, Caller
from support.ingest import event


@pytest.mark.skipif(not shutil.which("curl"), reason="the page's commands need curl")
@pytest.mark.usefixtures("shared_processes")
def test_the_page_is_true(api: Api, new_caller: Callable[..., Caller], tmp_path: Path) -> None:
    own = new_caller()
    own.owner.send(event("o-1", country="DE", amount=12.5), event("o-2", country="FR", amount=7.5))
    ingest(own.owner)
    out = run_as(own.owner.tenant.slug, "ask.md", tmp_path, PULSE=api.url, KEY=own.key.text)
    assert '"rows":[{"country":"DE","number":1},{"country":"FR","number":1}]' in out
    assert "understood  average amount in orders; by country" in out
    assert out.count('"state":"answered"') == 2
    (program,) = blocks("ask.md", "python")
    variables: dict[str, Any] = {"PULSE": api.url, "KEY": own.key.text}
    exec(program, variables)  # noqa: S102 - the page's own
    assert variables["rows"] == [{"country": "DE", "orders": 1}, {"country": "FR", "orders": 1}]
    pasted = [json.loads(block) for block in blocks("ask.md", "json") if "mcpServers" in block]
    assert [list(configuration["mcpServers"]) for configuration in pasted] == [["pulse"], ["pulse"]]
    schema = next(json.loads(block) for block in blocks("ask.md", "json") if "properties" in block)
    answer = own.http.post("/v1/schemas", json={"name": "purchases", "schema": schema})
    assert answer.status_code == 201, answer.text
