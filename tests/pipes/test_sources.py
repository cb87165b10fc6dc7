"""`pulse source`: addresses are tried, kept where only Pulse reads them, and never shown."""

import json
import stat
from typing import Any

import psycopg
import pytest
from support.files import web
from support.ingest import Owner
from typer.testing import CliRunner, Result

from chaos.sources import SOURCE, Folder, database
from pulse_api import cli
from pulse_api.cli import guard
from pulse_pipelines import pipes
from pulse_pipelines.domain.pipes import definition
from pulse_pipelines.pipes import addresses

PIPE = {"pipe": "planes", "source": "fleet", "table": "public.planes", "dataset": "planes"}


def run(*arguments: str, text: str = "") -> Result:
    return CliRunner().invoke(cli.app, ["source", *arguments], input=text)


def document(*arguments: str, text: str = "") -> Any:
    result = run(*arguments, "--json", text=text)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_source_from_its_address_to_its_end(owner: Owner) -> None:
    slug = owner.tenant.slug
    with database(owner.tenant) as connection:
        address = addresses.url(owner.tenant, SOURCE)
        stored = run("set", slug, "fleet", text=f"{address}\n")
        assert stored.exit_code == 0
        assert "stored the source fleet: Postgres" in stored.stdout
        path = addresses.file(owner.tenant, "fleet")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (address, 0o600)
        assert document("set", slug, "fleet", text=address)["replaced"] is True
        assert document("test", slug, "fleet")["answer"].startswith("Postgres")
        connection.execute("CREATE TABLE planes (tail text PRIMARY KEY)")
        pipes.create(owner.tenant, definition(PIPE))
        listed = document("list", slug)
        assert {
            source["source"]: (source["kind"], source["stored_in"], source["pipes"]) for source in listed
        } == {
            SOURCE: ("postgres", "file", []),
            "fleet": ("postgres", "file", ["planes"]),
        }
        password = psycopg.conninfo.conninfo_to_dict(address)["password"]
        assert str(password) not in stored.output + json.dumps(listed)
        used = run("remove", slug, "fleet")
        assert used.exit_code != 0
        assert f"pulse pipe delete {slug} planes" in used.output.replace("\n", " ")
        pipes.delete(owner.tenant, "planes")
        assert run("remove", slug, "fleet").exit_code == 0
    assert not path.exists()
    assert "the tenant has no such source" in run("remove", slug, "fleet").output


def test_an_address_that_does_not_answer_is_stored_only_untested(owner: Owner) -> None:
    slug, nowhere = owner.tenant.slug, "postgresql://me:secret@127.0.0.1:1/shop"
    refused = run("set", slug, "fleet", text=nowhere)
    assert (refused.exit_code, "does not answer" in refused.output) == (guard.FAILED, True)
    assert "Compare host, port and password" in refused.output
    malformed = run("set", slug, "fleet", text="ftp://me:secret@127.0.0.1/shop")
    assert (malformed.exit_code, "postgresql://user:password@host" in malformed.output) == (guard.WRONG, True)
    assert "secret" not in refused.output + malformed.output
    assert "secret" not in refused.output
    assert not addresses.file(owner.tenant, "fleet").exists()
    assert run("set", slug, "fleet", "--untested", text=nowhere).exit_code == 0
    assert addresses.url(owner.tenant, "fleet") == nowhere


@pytest.mark.parametrize(
    ("name", "given"),
    [("fleet", ""), ("fleet", "a\nb"), ("../fleet", "host=x"), ("fleet", "x" * 9_000), ("fleet", "host=x\0")],
)
def test_an_invalid_source_is_refused(owner: Owner, name: str, given: str) -> None:
    assert run("set", owner.tenant.slug, name, "--untested", text=given).exit_code == guard.WRONG


def test_a_bucket_and_a_web_server_are_tried(owner: Owner) -> None:
    bucket = Folder()
    assert "without files" in document("set", owner.tenant.slug, "files", text=bucket.address)["answer"]
    bucket.write("a.ndjson", b"{}")
    assert "with files" in document("test", owner.tenant.slug, "files")["answer"]

    def answer(_method: str, _path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        return (404 if headers.get("Authorization") == "Bearer good" else 401), {}, b""

    with web(answer) as address:
        good, bad = (address.replace("://", f"://bearer:{token}@") for token in ("good", "bad"))
        assert "status 404" in document("set", owner.tenant.slug, "feed", text=good)["answer"]
        assert "does not take the credentials" in run("set", owner.tenant.slug, "feed", text=bad).output
        assert addresses.url(owner.tenant, "feed") == good


def test_an_address_in_the_environment_takes_precedence(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = addresses.variable(owner.tenant, "fleet")
    monkeypatch.setenv(variable, "s3://key:secret@bucket")
    assert document("list", owner.tenant.slug) == [
        {"source": "fleet", "kind": "s3", "stored_in": "environment", "pipes": []}
    ]
    stored = run("set", owner.tenant.slug, "fleet", "--untested", text="host=x")
    removed = run("remove", owner.tenant.slug, "fleet")
    assert variable in stored.output.replace("\n", "")
    assert variable in removed.output.replace("\n", "")
