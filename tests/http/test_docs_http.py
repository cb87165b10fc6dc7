"""docs/http.md and entities.md are executed: every command, in order, against the real server."""

import re
import shutil
import uuid
from pathlib import Path

import pytest
from support.docs import blocks, run
from support.here import ingest_here as ingest
from support.http import Api
from support.ingest import Owner, make_owner

from pulse_pipelines import registry
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.query import duckdb_pool
from pulse_pipelines.query.preview import preview
from pulse_pipelines.registry import keys

BLOCKS = blocks("http.md")
WAIT = re.compile(r"^(?=until )", re.MULTILINE)
"""Where the page waits for a batch, which is run before it does."""


def test_a_newcomer_needs_fewer_than_ten_commands() -> None:
    """From `pulse up` to a previewed row."""
    before, separator, after = "".join(BLOCKS).partition("until ")
    first = before + separator + after.split("\n", 2)[0] + "\n" + after.split("\n", 2)[1]
    commands = [
        line for line in first.replace("\\\n", " ").splitlines() if re.match(r"(export|curl|until)", line)
    ]
    assert commands[-1].startswith("curl")
    assert "/preview" in commands[-1]
    assert 1 + len(commands) < 10, "with pulse up itself"


@pytest.mark.skipif(not shutil.which("curl"), reason="the page's commands need curl")
def test_every_command_works(api: Api, tmp_path: Path) -> None:
    tenant = f"t{uuid.uuid4().hex[:10]}"
    script = re.sub(r"\bacme\b", tenant, "\n".join(BLOCKS))
    script = re.sub(r"^export PULSE=.*$", "", script, flags=re.MULTILINE)
    first, *later_scripts = WAIT.split(script)
    known = {"PULSE": api.url, "OPERATOR": keys.issue_operator_key("docs").text}
    output = run(first, tmp_path, **known)
    key = re.search(r"^KEY IS (\S+)$", output, re.MULTILINE)
    assert key
    owner = Owner(registry.find_tenant(tenant))
    output = ""
    for script in later_scripts:
        ingest(owner)
        output += run(script, tmp_path, KEY=key[1], **known)
    assert '"id":"o-1"' in output
    assert output.count('"state":"landed"') >= 2, "o-1, and what was waited for"
    assert '"state":"dead_lettered"' in output, "k-1"
    assert '"rollup":"daily","from":"2026-11-01","to":"2026-11-30"' in output.replace(" ", "")
    assert "pulse_lag_events" in output
    ingest(owner)
    rows = preview(owner.tenant, "orders", 10).to_pylist()
    assert {row["id"] for row in rows} == {"o-1", "line-1", "line-2", "line-3", "/shop#7"}
    assert [row["visitor"] for row in preview(owner.tenant, "visits", 10).to_pylist()] == ["ann"]
    assert [row["id"] for row in preview(owner.tenant, "kept", 10).to_pylist()] == ["k-1"], "replayed"
    assert len(owner.dead_letters()) == 1


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("b2sum")), reason="commands of the page")
def test_every_command_about_entities_works(api: Api, tmp_path: Path) -> None:
    owner = make_owner()
    key = keys.issue_key(owner.tenant, "docs", list(KeyScope)).text
    script = re.sub(r"\bacme\b", owner.tenant.slug, "\n".join(blocks("entities.md")))
    first, *later_scripts = WAIT.split(script)
    output = run(first, tmp_path, KEY=key, PULSE=api.url)
    since = ""
    for script in later_scripts:
        ingest(owner)
        output = run(f"SINCE={since}\n{script}\necho; echo SINCE IS $SINCE", tmp_path, KEY=key, PULSE=api.url)
        since = output.rsplit("SINCE IS ", 1)[1].strip()
    assert sorted((row["id"], row["_is_deleted"]) for row in owner.rows("countries")) == [
        ("DE", False),
        ("DE", False),
        ("FR", False),
        ("FR", True),
        ("NL", False),
    ]
    state = '"rows":[{"id":"DE","people":79000000},{"id":"NL","people":18000000}]'
    assert state in output, "the latest state, by its name in SQL"
    latest = blocks("entities.md", "sql")[0]
    location = registry.current_table(owner.tenant, "countries").metadata_location
    with duckdb_pool.connect() as connection:
        query = latest.replace("FROM countries", f"FROM {duckdb_pool.SCAN}")
        assert sorted(connection.execute(query, [location]).to_arrow_table()["id"].to_pylist()) == [
            "DE",
            "NL",
        ]
