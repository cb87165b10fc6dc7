"""`pulse index`: created, listed with who reads, dropped."""

import json
from typing import Any

from support.entities import SLUG, make_entities
from support.ingest import make_owner
from typer.testing import CliRunner

from chaos.surroundings import superuser
from pulse_api import cli
from pulse_pipelines.query import versions
from pulse_resources.settings import Settings


def run(*arguments: object) -> Any:
    answer = CliRunner().invoke(cli.app, ["index", *map(str, arguments), "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def test_an_index_from_its_creation_to_its_end(stack: Settings) -> None:
    owner = make_owner()
    make_entities(owner)
    dataset = (owner.tenant.slug, SLUG)
    created = run("create", *dataset, "lower( name )")
    assert (created["expression"], created["behind"], created["readers"]) == ("lower(name)", 0, [])
    assert run("create", *dataset, "lower(name)")["index_id"] == created["index_id"], "it is there"
    versions.page(owner.tenant, SLUG, None, 1, False, "lower(name)=x", "a key")
    with superuser() as connection:
        ago = "UPDATE entity_index_readers SET read_at = now() - interval '31 days' WHERE tenant_id = %s"
        connection.execute(ago, [owner.tenant.tenant_id])
    (index,) = run("list", *dataset)
    assert (index["readers"], index["orphaned"]) == (["a key"], True)
    versions.page(owner.tenant, SLUG, None, 1, False, "lower(name)=x", "a key")
    assert [row["orphaned"] for row in run("list", *dataset)] == [False]
    assert run("drop", *dataset, created["index_id"]) == {"dropped": "lower(name)"}
    assert run("list", *dataset) == []
