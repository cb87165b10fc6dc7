"""The command line: every command explains itself, prints JSON, and fails on one line with a right code."""

import codecs
import gzip
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from psycopg_pool import ConnectionPool
from rich.console import Console
from rich.markup import render
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event
from typer.testing import CliRunner, Result

from chaos.surroundings import PULSE, forget_connections, with_settings
from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli, sending
from pulse_api.cli import chart, collect as collecting, guard, output
from pulse_api.cli.arguments import duration, moment
from pulse_api.cli.complete import complete_names
from pulse_api.cli.ingestion import Ingestion
from pulse_api.cli.lake import print_rows
from pulse_api.cli.parts import Part, imported
from pulse_client import Retries
from pulse_pipelines import registry
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.key import KeyScope, Presented
from pulse_pipelines.registry import intake, keys, quotas
from pulse_resources import postgres
from pulse_resources.errors import UserError, first_line
from pulse_resources.local.processes import MARK, ProcessId
from pulse_resources.local.state import StackState
from pulse_resources.settings import Settings, load_settings

CLI = CliRunner()


def run(*arguments: object, code: int = 0, stdin: str | bytes | None = None) -> Result:
    """A `pulse` command in this process."""
    result = CLI.invoke(cli.app, [str(argument) for argument in arguments], stdin, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def as_json(*arguments: object, code: int = 0, stdin: str | bytes | None = None) -> Any:
    return json.loads(run(*arguments, "--json", code=code, stdin=stdin).stdout)


def fails(*arguments: object, code: int, stdin: str | bytes | None = None) -> str:
    """A command that fails: its one line."""
    result = run(*arguments, code=code, stdin=stdin)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command, by its words; groups left out."""
    if not hasattr(group, "commands"):
        return {path: group}
    leaves: dict[tuple[str, ...], Any] = {}
    for name, part in group.commands.items():
        leaves |= commands(part, (*path, name))
    return leaves


COMMANDS = commands(imported(cli.app))


@pytest.mark.parametrize("name", cli.PARTS)
def test_the_list_of_commands_repeats_the_help_of_each_command(name: str) -> None:
    module, line = cli.PARTS[name]
    command = Part(name, module, line).imported()
    own = command.help if (name,) in COMMANDS else import_module(f"pulse_api.cli.{module}").app.info.help
    assert line == " ".join(own.partition("\n\n")[0].split())


def test_the_version_is_the_package_s() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "pulse"), "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{version('pulse')}\n")


def test_a_stopped_stack_is_reported_at_once(tmp_path: Path) -> None:
    """In the wrong folder it took twelve seconds to hear that Postgres does not answer."""
    supervisor = {"pid": 1, "started": 0, "boot": "another"}
    (tmp_path / "stack.json").write_text(json.dumps({"supervisor": supervisor}))
    (tmp_path / "settings.json").write_text(json.dumps({"postgres": {"port": 1}}))
    env = os.environ | {"PULSE_HOME": str(tmp_path)}
    done = subprocess.run([PULSE, "tenant", "list"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: Pulse is not running in {tmp_path}. Start it with `pulse up`")
    assert "psycopg" not in imported_by("tenant", "list", PULSE_HOME=str(tmp_path))


HEAVY = (
    *("confluent_kafka", "dagster", "duckdb", "httpx", "jsonschema", "numpy", "pandas", "psycopg", "pyarrow"),
    *("pyiceberg", "pyspark", "sqlalchemy", "fastapi"),
)
"""What takes long to import, a tenth of a second and more, and is no part of the command line itself."""


def imported_by(*arguments: str, **env: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom pulse_api import cli\nsys.argv[0] = 'pulse'\n"
        "try: cli.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    return set(done.stderr.split())


@pytest.mark.long
def test_help_and_mistakes_import_nothing_that_takes_long() -> None:
    """They are answered before anybody asks himself whether something hangs."""
    for arguments in (("--help",), ("--version",)):
        assert not imported_by(*arguments) & {*HEAVY, "pydantic", "pulse_resources.settings"}
    for arguments in (
        ("craete",),
        ("tenant", "--help"),
        ("tenant", "craete"),
        ("dlq", "replay", "--no-such-option"),
    ):
        assert not imported_by(*arguments) & set(HEAVY)


def test_no_part_of_the_cli_imports_slow_modules_before_use() -> None:
    code = (
        "import sys\nfrom pulse_api import cli\nfrom pulse_api.cli.parts import imported\n"
        f"imported(cli.app)\nprint({set(HEAVY)} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.long
def test_no_module_waits_for_its_first_use_once_a_command_works(tmp_path: Path) -> None:
    """Of two threads that use one first at the same time, one would see half of it."""
    (tmp_path / "orders.json").write_text('{"type": "object", "properties": {"country": {"type": "string"}}}')
    code = (
        "import sys\nfrom importlib.util import _LazyModule\nfrom pulse_api import cli\n"
        "sys.argv[0] = 'pulse'\ntry: cli.main()\n"
        "finally: print([name for name, module in sys.modules.items() if type(module) is _LazyModule])"
    )
    command = [sys.executable, "-c", code, "schema", "check", str(tmp_path / "orders.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_command_has_help_with_an_example_and_json(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options or path == ("mcp",)  # which speaks a protocol of its own
    assert re.search(rf"Example: .*pulse {' '.join(path)}\b", command.help), "no example of itself"
    helps = [getattr(parameter, "help", None) for parameter in command.params if not parameter.hidden]
    assert all(helps)
    assert [render(text).plain for text in helps] == [text.replace(r"\[", "[") for text in helps]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_wrong_option_is_a_wrong_request(path: tuple[str, ...]) -> None:
    assert "No such option" in run(*path, "--no-such-option", code=2).stderr


# Where Postgres is down: what a command says then, on one line.
ALONE = {"up", "down", "status", "demo", "alerts", "config", "doctor", "schema check"}
ARGUMENTS = {
    "TENANT": "acme",
    "SLUG": "orders",
    "DATASET": "orders",
    "NAME": "orders",
    "FILE": "-",
    "SCHEMA": "orders",
    "SCHEMA_URI": "pulse://acme/orders/1",
    "KEY_ID": "4bf92f3577b3",
    "BATCH_ID": "4bf92f35",
}
MORE = {
    ("dlq", "replay"): ["--all"],
    ("dlq", "discard"): ["--all", "--yes"],
    ("backfill",): ["--from", "2026-11-01"],
    ("schema", "try"): ["--against", "orders"],
    ("lake", "connect"): ["--engine", "spark"],
    ("apply",): ["--file", str(Path(__file__).parents[2] / "docs" / "examples" / "acme.yaml")],
    ("erase",): ["--dataset", "orders", "--where", "country=x", "--yes"],
}


def test_a_schema_is_checked_without_a_stack(no_stack: None) -> None:
    choices = [
        {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}},
        },
        {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"const": "b"}, "id": {"enum": ["x"]}},
        },
    ]
    checked = as_json("schema", "check", "-", stdin=json.dumps({"oneOf": choices}))
    assert [(column["field"], column["name"], column["type"]) for column in checked["columns"]] == [
        ("kind", "kind", "string"),
        ("n", "n", "long"),
        ("id", "data_id", "string"),
    ]
    assert 0 < checked["largest_event_seconds"] < checked["limit_seconds"] == 10
    result = run("schema", "check", "-", stdin=json.dumps({"fields": {"at": "timestamp"}}))
    assert "timestamptz" in result.stdout
    assert "Validating an event of 262,144 bytes takes at most" in result.stderr
    assert "not a regular expression" in fails("schema", "check", "-", code=2, stdin='{"pattern": "("}')
    document = '{"title": "Größe", "fields": {"size": "number"}}'
    checked = as_json("schema", "check", "-", stdin=document.encode("utf-8-sig"))
    assert [column["field"] for column in checked["columns"]] == ["size"]
    error = fails("schema", "check", "-", code=2, stdin=document.encode("utf-16"))
    assert "the schema is not UTF-8: its first bytes mark it as UTF-16. Save the file as UTF-8" in error
    error = fails("schema", "check", "-", code=2, stdin=b'{"type": "object",\n "title": "\xe9"}')
    assert "the schema is not UTF-8: line 2 has the byte 0xe9. Save the file as UTF-8" in error
    error = fails("schema", "check", "-", code=2, stdin=gzip.compress(document.encode()))
    assert "the schema is compressed by gzip. Decompress it on the way: gzip -dc FILE | pulse ... -" in error


@pytest.mark.long
@pytest.mark.parametrize(
    "path", [path for path in COMMANDS if not {path[0], " ".join(path)} & ALONE], ids=" ".join
)
def test_a_stack_that_is_down_is_reported_on_one_line(path: tuple[str, ...], no_stack: None) -> None:
    required = [p for p in COMMANDS[path].params if p.param_type_name == "argument" and p.required]
    values = [ARGUMENTS.get(p.name.upper(), "0") for p in required]
    assert "pulse up" in fails(*path, *values, *MORE.get(path, []), code=1)


@pytest.fixture
def no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody listens where Postgres should be; nor is it waited for as long as usual."""
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    monkeypatch.setenv("PULSE_POSTGRES__PORT", "1")

    class Impatient(ConnectionPool[postgres.Connection]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"timeout": 0.02})

    monkeypatch.setattr(postgres, "ConnectionPool", Impatient)
    forget_connections()
    yield
    monkeypatch.undo()
    forget_connections()


def test_a_folder_in_which_pulse_never_ran_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name.startswith("PULSE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    monkeypatch.setattr(postgres, "ConnectionPool", None)  # nobody is waited for
    forget_connections()
    running = tmp_path / "a stack"
    running.mkdir()
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    (stopped / "stack.json").write_text('{"supervisor": {"pid": 1, "started": 0, "boot": "another"}}')
    me = ProcessId.of(os.getpid())
    (running / "stack.json").write_text(StackState(supervisor=me).model_dump_json())
    try:
        error = fails("tenant", "list", code=2)
        assert f"Pulse has never run in {tmp_path}" in error
        assert str(running) not in error
        with marked(running), marked(stopped):
            error = fails("tenant", "list", code=2)
            assert "`pulse up`" in error
            assert f"PULSE_HOME='{running}'" in error
            assert str(stopped) not in error
            for command, code in (("status", 1), ("down", 0)):
                error = run(command, code=code).stderr
                assert str(tmp_path) in error
                assert f"PULSE_HOME='{running}'" in error
    finally:
        monkeypatch.undo()
        forget_connections()


@contextmanager
def marked(home: Path) -> Iterator[None]:
    """A process of the stack in `home`."""
    command, env = [sys.executable, "-c", "input()"], os.environ | {MARK: str(home)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
def subprocess_env() -> Callable[..., dict[str, str]]:
    """The environment of a command that finds no stack: a free port, and nobody behind it."""

    def environment(home: Path, port: int = 1) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PULSE_")}
        return ours | {
            "PULSE_HOME": str(home),
            "PULSE_POSTGRES__PORT": str(port),
            "PULSE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        }

    return environment


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3_600), ("30d", 2_592_000), ("1h30m", 5_400)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1.5h", "1y", "1h ", "99999999w"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        duration(text)


# Completion ----------------------------------------------------------------------------------------


def complete(line: str, env: dict[str, str]) -> list[str]:
    """What bash would offer."""
    words = line.split(" ")
    done = subprocess.run(
        [PULSE],
        env=env | {"_PULSE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


def test_completion_offers_existing_tenants_datasets_keys_and_schemas(owner: Owner) -> None:
    slug, env = owner.tenant.slug, os.environ | {"PULSE_COMPLETION_SECONDS": "300"}
    key = keys.issue_key(owner.tenant, "x", [KeyScope.READ])
    revoked = keys.issue_key(owner.tenant, "y", [KeyScope.READ])
    keys.revoke_key(owner.tenant, revoked.stored.key_id)
    assert slug in complete(f"pulse tenant show {slug[:4]}", env)
    assert complete(f"pulse dataset show {slug} or", env) == ["orders"]
    assert complete(f"pulse key revoke {slug} ", env) == [key.stored.key_id]
    assert complete(f"pulse schema show {slug} pulse", env) == [f"pulse://{slug}/orders/1"]
    assert complete(f"pulse dataset show {slug}x ", env) == []


def test_completion_is_silent_without_a_stack(
    tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]
) -> None:
    assert complete("pulse tenant show ", subprocess_env(tmp_path)) == []


def test_completion_does_not_wait_for_a_postgres_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_COMPLETION_SECONDS", "0.2")
    answered = threading.Event()

    def list_slugs() -> list[str]:
        answered.wait()
        return ["acme"]

    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        with with_settings(POSTGRES__PORT=silent.getsockname()[1]):
            assert complete_names(list_slugs, "") == []
        answered.set()
        with with_settings(POSTGRES__PORT=silent.getsockname()[1]):
            monkeypatch.setenv("PULSE_COMPLETION_SECONDS", "300")
            assert complete_names(list_slugs, "") == ["acme"]


# Tenants, limits, usage ----------------------------------------------------------------------------


@pytest.fixture
def slug(stack: Settings) -> str:
    return f"t{uuid.uuid4().hex[:10]}"


def test_a_tenant_is_created_listed_and_shown(slug: str) -> None:
    created = as_json("tenant", "create", slug, "--name", "A tenant")
    assert created in as_json("tenant", "list")
    assert created["tenant_id"] in run("tenant", "list").stdout
    tenant = as_json("tenant", "show", slug)
    assert tenant["datasets"] == []
    assert tenant["limits"]["max_datasets"] == 1_000
    assert tenant["limits"]["max_records_per_month"] == -1
    assert "unlimited" in run("tenant", "show", slug).stdout
    assert "a tenant with this slug exists" in fails("tenant", "create", slug, code=2)
    assert f"[tenant={slug}]" in fails("tenant", "create", slug, code=2), "brackets are no markup"
    assert "not a valid tenant slug" in fails("tenant", "create", "No|pe", code=2)
    assert f"Did you mean {slug}?" in fails("tenant", "show", f"{slug}x", code=2)
    assert "pulse tenant create nobody_else" in fails("tenant", "show", "nobody_else", code=2)


def test_limits_are_set_one_by_one(owner: Owner) -> None:
    slug = owner.tenant.slug
    assert as_json("tenant", "limits", slug)["own"]["max_datasets"] == 0
    as_json("tenant", "limits", slug, "--max-datasets", 1)
    limits = as_json("tenant", "limits", slug, "--events-per-second", 2.5, "--requests-per-second", -1)
    assert limits["own"] == {
        "max_datasets": 1,
        "max_records_per_month": 0,
        "requests_per_second": -1,
        "events_per_second": 2.5,
        "max_entity_datasets": 0,
        "max_lake_tables": 0,
        "max_lake_bytes": 0,
    }
    assert limits["in_force"]["max_records_per_month"] == -1
    assert quotas.find_limits(owner.tenant).events_per_second == 2.5
    assert "2.5" in run("tenant", "limits", slug).stdout
    uri = f"pulse://{slug}/orders/1"
    refused = fails("dataset", "create", slug, "more", uri, code=2)
    assert "may have 1" in refused
    assert f"pulse tenant limits {slug} --max-datasets NUMBER" in " ".join(refused.split())
    for option, value in [
        ("max-datasets", -2),
        ("max-records-per-month", 2**53 + 1),
        ("events-per-second", "nan"),
    ]:
        run("tenant", "limits", slug, f"--{option}", value, code=2)
    for rate in (-0.5, 5e-324):
        assert "0.001" in run("tenant", "limits", slug, "--requests-per-second", rate, code=2).stderr


def test_usage_is_shown(owner: Owner) -> None:
    intake.reserve(owner.tenant, [[b"%d" % n for n in range(7)]], 10)
    usage = as_json("usage", owner.tenant.slug)
    assert (usage["datasets"], usage["months"][0]["accepted"]) == (1, 7)
    assert usage["months"][0]["landed_delta"] == usage["months"][0]["landed"] == 0
    assert "datasets: 1 of 1,000" in run("usage", owner.tenant.slug).stdout


# Keys ----------------------------------------------------------------------------------------------


def test_a_key_is_alone_on_stdout_and_shown_once(owner: Owner) -> None:
    slug = owner.tenant.slug
    issued = run("key", "create", slug, "--name", "shop", "--scope", "collect", "--expires-in", "30d")
    key = issued.stdout.removesuffix("\n")
    presented = Presented.parse(key)
    assert presented
    assert presented.tenant_id == owner.tenant.tenant_id
    assert "hown once" in issued.stderr
    (listed,) = as_json("key", "list", slug)
    assert (listed["name"], listed["scopes"], listed["in_force"]) == ("shop", ["collect"], True)
    assert listed["expires_at"] is not None
    for result in (run("key", "list", slug), run("key", "list", slug, "--json")):
        assert presented.key_id in result.stdout
        assert presented.secret not in result.output


def test_a_key_is_rotated_with_overlap_and_revoked(owner: Owner) -> None:
    slug = owner.tenant.slug
    old = as_json("key", "create", slug, "--scope", "read", "--scope", "manage")
    new = as_json("key", "rotate", slug, old["key_id"], "--overlap", "1h")
    assert new["scopes"] == ["manage", "read"]
    assert new["key"] != old["key"]
    listed = {key["key_id"]: key for key in as_json("key", "list", slug)}
    assert listed[old["key_id"]]["expires_at"] is not None
    assert listed[old["key_id"]]["in_force"] is True
    assert Presented.parse(run("key", "rotate", slug, new["key_id"]).stdout.strip())
    assert "revoked" in run("key", "revoke", slug, old["key_id"]).stdout
    assert as_json("key", "revoke", slug, old["key_id"])["in_force"] is False
    assert "revoked" in run("key", "list", slug).stdout
    child = keys.issue_key(owner.tenant, "child", [KeyScope.READ], issuer=new["key_id"]).stored.key_id
    assert {key["key_id"]: key["issued_by"] for key in as_json("key", "list", slug)}[child] == new["key_id"]
    assert new["key_id"] in run("key", "list", slug).stdout
    assert as_json("key", "revoke", slug, new["key_id"])["revoked_with_it"] == [child]
    assert "was revoked" in fails("key", "rotate", slug, old["key_id"], code=2)
    assert "no such key" in fails("key", "revoke", slug, "000000000000", code=2)
    run("key", "create", slug, "--scope", "everything", code=2)
    run("key", "create", slug, "--expires-in", "soon", code=2)


def test_a_key_of_another_tenant_cannot_be_revoked(new_owner: Callable[[], Owner]) -> None:
    one, other = new_owner().tenant, new_owner().tenant
    key = keys.issue_key(one, "x", [KeyScope.READ]).stored.key_id
    assert "no such key" in fails("key", "revoke", other.slug, key, code=2)
    assert keys.list_keys(one)[0].revoked_at is None


def test_operator_keys(stack: Settings) -> None:
    result = run("key", "operator", "create", "--name", "test")
    presented = Presented.parse(result.stdout.strip())
    assert presented
    assert presented.tenant_id is None
    assert presented.key_id in run("key", "operator", "list").stdout
    assert as_json("key", "operator", "revoke", presented.key_id)["revoked_at"]
    assert "is revoked" in run("key", "operator", "revoke", presented.key_id).stdout
    assert "no such operator key" in fails("key", "operator", "revoke", "000000000000", code=2)


# Schemas and datasets ------------------------------------------------------------------------------


def test_schemas_are_published_from_files_and_pipes(owner: Owner, tmp_path: Path) -> None:
    slug, file = owner.tenant.slug, tmp_path / "schema.json"
    text = json.dumps(SCHEMA | {"title": "Ünïcode"}, indent=1, ensure_ascii=False) + "\n"
    file.write_text(text)
    assert run("schema", "publish", slug, "orders", file).stdout.strip() == f"pulse://{slug}/orders/2"
    again = as_json("schema", "publish", slug, "orders", "-", stdin=text)
    assert (again["version"], again["created"]) == (2, False)
    assert run("schema", "show", slug, "orders").stdout == text, "byte for byte"
    assert run("schema", "show", slug, f"pulse://{slug}/orders/1").stdout.strip() == json.dumps(SCHEMA)
    assert as_json("schema", "show", slug, "orders")["schema"]["title"] == "Ünïcode"
    assert [one["version"] for one in as_json("schema", "list", slug)] == [1, 2]
    assert f"pulse://{slug}/orders/2" in run("schema", "list", slug).stdout
    assert "no such schema" in fails("schema", "show", slug, "absent", code=2)
    assert "cannot read" in fails("schema", "publish", slug, "orders", tmp_path / "absent", code=2)
    for wrong in ("nonsense", '{"type": "string"}', "[]", '{"fields": {"x": "decimal"}}'):
        fails("schema", "publish", slug, "orders", "-", code=2, stdin=wrong)


def test_a_schema_is_published_from_its_shorthand(owner: Owner) -> None:
    slug, short = owner.tenant.slug, '{"fields": {"country": "string", "at": "timestamp"}}'
    uri = run("schema", "publish", slug, "short", "-", stdin=short).stdout.strip()
    fields = as_json("schema", "show", slug, uri)["schema"]["properties"]
    assert fields["at"] == {"type": "string", "format": "date-time"}
    as_json("dataset", "create", slug, "short", uri)
    columns = as_json("dataset", "show", slug, "short")["columns"]
    assert {"field": "at", "name": "at", "type": "timestamptz"} in columns


def test_datasets_are_created_listed_shown_and_deleted(owner: Owner) -> None:
    slug = owner.tenant.slug
    uri = f"pulse://{slug}/orders/1"
    created = as_json("dataset", "create", slug, "more", uri, "--name", "More", "--on-invalid", "dead_letter")
    assert (created["on_invalid"], created["schema_uri"]) == ("dead_letter", uri)
    assert [one["slug"] for one in as_json("dataset", "list", slug)] == ["more", "orders"]
    dataset = as_json("dataset", "show", slug, "more")
    assert dataset["metadata_location"].endswith(".metadata.json")
    for arguments in (("list", slug), ("show", slug, "more")):
        assert created["dataset_id"] in run("dataset", *arguments).stdout
    assert "a dataset with this slug" in fails("dataset", "create", slug, "more", uri, code=2)
    assert "has not published" in fails("dataset", "create", slug, "x", f"pulse://{slug}/x/1", code=2)
    run("dataset", "create", slug, "x", uri, "--on-invalid", "whatever", code=2)

    refused = run("dataset", "delete", slug, "more", code=2, stdin="n\n")
    assert "nothing was deleted" in refused.stderr
    assert "more" in [one["slug"] for one in as_json("dataset", "list", slug)]
    deleted = run("dataset", "delete", slug, "more", stdin="y\n").stdout
    assert "files stay" in deleted
    assert dataset["metadata_location"] in deleted
    removed = as_json("dataset", "delete", slug, "orders", "--yes")
    assert (removed["files"], removed["slug"]) == ("kept", "orders")
    assert "no such dataset" in fails("dataset", "delete", slug, "orders", "--yes", code=2)
    assert as_json("dataset", "list", slug) == []


def test_a_dataset_moves_to_a_compatible_version(owner: Owner) -> None:
    slug = owner.tenant.slug
    more = {**SCHEMA, "properties": SCHEMA["properties"] | {"city": {"type": "string"}}}
    two = run("schema", "publish", slug, "orders", "-", stdin=json.dumps(more)).stdout.strip()
    assert f"follows {two}" in run("dataset", "move", slug, "orders", two).stdout
    assert as_json("dataset", "move", slug, "orders", two)["schema_versions"] == [1, 2]
    stricter = more | {"required": ["country", "city"]}
    three = run("schema", "publish", slug, "orders", "-", stdin=json.dumps(stricter)).stdout.strip()
    incompatibilities = as_json("dataset", "move", slug, "orders", three, code=1)["incompatibilities"]
    assert incompatibilities
    assert {"pointer", "change", "reason"} == set(incompatibilities[0])
    result = run("dataset", "move", slug, "orders", three, code=1)
    assert incompatibilities[0]["pointer"] in result.stdout
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert as_json("dataset", "show", slug, "orders")["schema_uri"] == two
    assert "no such dataset" in fails("dataset", "move", slug, "absent", two, code=2)


# Collect -------------------------------------------------------------------------------------------


@pytest.fixture
def key(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> str:
    text = keys.issue_key(owner.tenant, "test", [KeyScope.COLLECT]).text
    monkeypatch.setenv("PULSE_KEY", text)
    return text


def received(owner: Owner) -> int:
    """Events in the tenant's topic."""
    from pulse_pipelines.ingest import plan

    (backlog,) = [b for b in plan.ingest_status().backlogs if b.tenant_id == owner.tenant.tenant_id]
    return backlog.weight


def test_events_are_collected_from_lines_and_arrays(
    api_service: str, owner: Owner, key: str, tmp_path: Path
) -> None:
    file, slug = tmp_path / "events.ndjson", owner.tenant.slug
    file.write_bytes(b"\n\n".join(event(f"e{n}") for n in range(1_234)) + b"\n")
    summary = as_json("collect", slug, file)
    assert (summary["sent"], summary["accepted"], summary["verdicts"]) == (1_234, 1_234, [])
    array = b" \n[\n" + b",\n".join(event(f"a{n}") for n in range(3)) + b"]\n"
    assert "3 events: 3 accepted" in run("collect", slug, "-", stdin=array).stdout
    assert as_json("collect", slug, stdin=b"")["sent"] == 0
    assert received(owner) == 1_237


def test_members_that_no_column_has_are_named_once(api_service: str, owner: Owner, key: str) -> None:
    misspelt = [event(f"e{n}").replace(b"{", b'{"contxt": {}, ', 1) for n in range(501)]
    result = run("collect", owner.tenant.slug, stdin=b"\n".join(misspelt))
    warning = "contxt is not a member of an event: no column has it (501 events). Did you mean context?"
    assert (result.stdout, result.stderr.splitlines()) == (
        "501 events: 501 accepted, 0 dead-lettered, 0 refused\n",
        [warning],
    )
    result = run("collect", owner.tenant.slug, stdin=event("one"))
    assert result.stdout.startswith("1 event: 1 accepted")
    (entry,) = as_json("collect", owner.tenant.slug, stdin=misspelt[0])["ignored"]
    assert (entry["member"], entry["events"]) == ("contxt", 1)


def test_refused_events_are_named_by_their_place(api_service: str, owner: Owner, key: str) -> None:
    events = [event(f"e{n}") for n in range(1_000)]
    events[700] = event("bad", country=7)
    result = run("collect", owner.tenant.slug, stdin=b"\n".join(events), code=1)
    assert "1,000 events: 999 accepted, 0 dead-lettered, 1 refused" in result.stdout
    assert "/data/country" in result.stdout
    summary = as_json("collect", owner.tenant.slug, stdin=b"\n".join([*events[:3], events[700]]), code=1)
    (verdict,) = summary["verdicts"]
    assert (verdict["index"], verdict["event_id"], verdict["status"]) == (3, "bad", "refused")
    assert verdict["line"] == 4
    only = as_json("collect", owner.tenant.slug, stdin=b"{}", code=1)
    assert (only["refused"], only["accepted"]) == (1, 0)
    assert received(owner) == 999 + 3


def test_batches_are_shown_when_they_have_settled_too(owner: Owner) -> None:
    owner.send(event("a"), event("b"), event("b"))
    batch = ingest(owner)
    (row,) = [batch_row for batch_row in as_json("batch", "list") if batch_row["batch_id"] == batch]
    assert (row["state"], row["tenants"], row["events"]) == ("settled", 1, 3)
    assert (row["landed"], row["duplicates"], row["dead_letters"]) == (2, 1, 0)
    assert batch in run("batch", "list").stdout
    assert batch not in run("batch", "list", "--limit", 0).stdout


@pytest.mark.parametrize("command", [("tenant", "show"), ("preview",)])
def test_a_name_that_is_almost_right_is_answered_with_the_right_one(
    owner: Owner, command: tuple[str, ...]
) -> None:
    slug = owner.tenant.slug
    if command == ("preview",):
        assert "Did you mean orders?" in fails("preview", slug, "odrers", code=2)
    else:
        assert f"Did you mean {slug}?" in fails(*command, f"{slug[:-1]}x", code=2)


def test_collect_succeeds_with_dead_lettered_events(api_service: str, owner: Owner, key: str) -> None:
    slug = owner.tenant.slug
    registry.create_dataset(
        owner.tenant, "lenient", f"pulse://{slug}/orders/1", on_invalid=OnInvalid.DEAD_LETTER
    )
    summary = as_json("collect", slug, stdin=event("e1", dataset="lenient", country=7))
    assert (summary["dead_lettered"], summary["refused"]) == (1, 0)
    assert received(owner) == 1


def test_collect_needs_a_key_of_the_tenant(
    api_service: str, new_owner: Callable[[], Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = new_owner().tenant, new_owner().tenant
    monkeypatch.delenv("PULSE_KEY", raising=False)
    assert "the key is missing" in fails("collect", one.slug, code=2)
    for key in ("nonsense", keys.issue_key(other, "x", [KeyScope.COLLECT]).text):
        assert "not a key of the tenant" in fails("collect", one.slug, "--key", key, code=2)
    key = keys.issue_key(one, "x", [KeyScope.READ]).text
    wrong = run("collect", one.slug, "--key", key, code=2, stdin=event("e")).stderr
    assert "scope collect" in wrong
    assert f"pulse key create {one.slug}" in wrong
    assert "header" not in wrong
    assert key not in wrong
    keys.revoke_key(one, Presented.parse(key).key_id)
    assert "not in force" in run("collect", one.slug, "--key", key, code=2, stdin=event("e")).stderr
    fails("collect", one.slug, "/no/such/file", "--key", key, code=2)
    assert "not a JSON array" in run("collect", one.slug, "--key", key, code=2, stdin="[nonsense").stderr


def test_collect_ends_at_once_when_the_quota_is_used_up(api_service: str, owner: Owner, key: str) -> None:
    as_json("tenant", "limits", owner.tenant.slug, "--max-records-per-month", 600)
    result = run("collect", owner.tenant.slug, stdin=b"\n".join(event(f"e{n}") for n in range(700)), code=2)
    assert "500 events were accepted before" in result.stderr
    assert "the monthly quota of" in result.stderr


def test_a_rate_is_waited_for(api_service: str, owner: Owner, key: str) -> None:
    as_json("tenant", "limits", owner.tenant.slug, "--events-per-second", 400)
    began = time.monotonic()
    summary = as_json("collect", owner.tenant.slug, stdin=b"\n".join(event(f"e{n}") for n in range(1_200)))
    assert summary["accepted"] == 1_200
    assert time.monotonic() - began > 1


def test_an_api_that_is_down_is_reported_on_one_line(
    owner: Owner, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_API__PORT", "1")
    monkeypatch.setattr(sending, "RETRIES", Retries(attempts=2))
    load_settings.cache_clear()
    try:
        result = run("collect", owner.tenant.slug, stdin=event("e"), code=1)
    finally:
        monkeypatch.undo()
        load_settings.cache_clear()
    assert "the API does not answer" in result.stderr.splitlines()[-1]


def test_markup_in_events_and_errors_is_shown_as_text() -> None:
    written = io.StringIO()
    console = Console(file=written, width=200)
    print_rows(console, [{"country": "[/b] [red]DE", "city": "\x1b[2J", "[/i] [blue]x": 1}], "[/b] orders")
    printed_text = written.getvalue()
    assert all(text in printed_text for text in ("[/b] [red]DE", "[/i] [blue]x", "[/b] orders"))
    assert "\x1b" not in printed_text
    problem = "failed [tenant=acme, dataset=orders]"
    console.print(Ingestion(problems=(problem,)).lines()[-1])
    assert problem in written.getvalue()


MOMENT = datetime(2026, 11, 19, 10, tzinfo=UTC)


def test_a_table_fits_a_terminal_and_names_the_omitted_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    sentence = "the broker has not acknowledged it within ten seconds, whoever was asked"
    row = ("4bf9", 165_000_000, MOMENT, MOMENT, "ended", sentence)
    columns = ("id", "events", "began", "ended", "state", "why")
    output.show_table(columns, [row], empty="", spare=("ended", "began"))
    stdout, stderr = capsys.readouterr()
    assert max(map(len, stdout.splitlines())) <= 80
    assert "…" not in stdout
    assert "165,000,000" in stdout
    assert "2026-11-19 10:00:00Z" in stdout, "no more is left out than has to be"
    assert " ".join(re.findall(r"[a-z]+", stdout)).count("acknowledged") == 1
    assert "Columns left out to fit 80 characters: ended. --json" in stderr


def test_a_piped_table_is_as_wide_as_the_variable_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output.show_table(("name", "why"), [("orders", "it is longer than one line " * 4)], empty="")
    output.show_fields([("why", "it is longer than one line " * 4)])
    lines = capsys.readouterr().out.splitlines()
    assert 50 < max(map(len, lines)) <= 60
    output.show_table(("id", "why"), [("x" * 30, "y" * 31)], empty="", spare=("why",))
    assert "Columns left out to fit 60 characters: why" in capsys.readouterr().err


def test_a_piped_table_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    output.show_table(("a", "b"), [("x" * 100, "y" * 100)], empty="", spare=("b", "a"))
    printed = capsys.readouterr()
    assert "x" * 100 in printed.out
    assert "y" * 100 in printed.out
    assert printed.err == ""


def test_a_long_command_in_a_script_prints_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An erasure run by one was silent for minutes."""
    monkeypatch.setattr(output, "TELL_S", 0.01)
    stderr = ""

    def printed_step(step: str) -> bool:
        nonlocal stderr
        stderr += capsys.readouterr().err
        return re.search(rf"{re.escape(step)} \(\d+ s\)\n", stderr) is not None

    with output.working("erasing") as begins:
        wait(lambda: printed_step("erasing"), "nothing is said of the beginning")
        begins("erasing: [raw] zone")
        wait(lambda: printed_step("erasing: [raw] zone"), "the step is not named")
    stderr = capsys.readouterr().err
    time.sleep(0.05)
    assert capsys.readouterr() == ("", ""), "it ends with the work"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_a_printed_time_is_a_valid_option_value(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    assert output.cell(MOMENT) == "2026-11-19 10:00:00Z"
    assert moment(output.cell(MOMENT)) == MOMENT
    monkeypatch.undo()
    time.tzset()


TITLE = "query 0123456789abcdef of a tenant whose name makes the title wider than the table"


def test_rows_that_do_not_fit_the_terminal_are_printed_vertically(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [
        {"id": f"o-{n}", "timestamp": MOMENT, "amount": n, "tenant_id": "t", "none": None} for n in (1, 2)
    ]

    def printed(width: int) -> list[str]:
        written = io.StringIO()
        print_rows(Console(file=written, width=width), rows, TITLE)
        return written.getvalue().splitlines()

    assert [printed(width)[0] for width in (80, 30)] == [TITLE] * 2

    assert [line for line in printed(80) if "o-1" in line and "2026-11-19 10:00:00Z" in line]
    assert "Columns left out, empty or the same in all rows: tenant_id, none." in capsys.readouterr().err
    assert [line for line in printed(30) if "amount" in line and "timestamp" not in line]


def test_verdicts_name_the_line_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = array("Q")
    raw_lines = [b"\n", b'{"a": 1}\n', b"  \n", b'{"a": 2}\n']
    assert list(collecting._payloads(raw_lines, lines)) == [b'{"a": 1}', b'{"a": 2}']
    assert [*lines] == [2, 4]
    over = [b'{"a":\n', b'  {"b": "}"}\n', b"}\n", b"\n", b'{"c": 1}\n', b'{"d": }\n', b'{"e": 1}\n']
    assert list(collecting._payloads(over, begins := array("Q"))) == [
        *(b'{"a":\n{"b": "}"}\n}', b'{"c": 1}', b'{"d": }', b'{"e": 1}'),
    ]
    assert [*begins] == [1, 5, 6, 7]
    wrong = [b"{\n", b'"a": {"b": "}{\\""},\n', b'"c": 01\n', b"}\n", b"{\n", b'"d": 1}\n']
    assert list(collecting._payloads(wrong, begins := array("Q"))) == [
        *(b'{\n"a": {"b": "}{\\""},\n"c": 01\n}', b'{\n"d": 1}'),
    ], "one event, refused as one, for what is wrong with it"
    assert [*begins] == [1, 5]
    cut = [b'{"a":\n', b'"b\n', b'c"}\n']
    assert list(collecting._payloads(cut, array("Q"))) == [b'{"a":\n"b\nc"}'], (
        "a line feed within a text stays"
    )
    broken = [b'{"a": \n', *[b'{"b": 1}\n'] * 3]
    monkeypatch.setattr(collecting, "MAX_EVENT_BYTES", 20)
    assert list(collecting._payloads(broken, array("Q"))) == [line.strip() for line in broken]
    with pytest.raises(UserError, match="the file is compressed by gzip"):
        list(collecting._payloads([gzip.compress(raw_lines[1])], array("Q")))
    for charset in ("utf-16-le", "utf-32-le"):  # without a mark: it begins with a bracket
        with pytest.raises(UserError, match="not a JSON array"):
            list(collecting._payloads([f"[{raw_lines[1].decode()}]".encode(charset)], array("Q")))
    elements = [b'{"a": 1.10,\n"b": 9007199254740993.0}', b"1e400", b"NaN", b'"\\ud800"', b'{"c": 1, "c": 2}']
    assert list(collecting._payloads([b"[ ", b" , ".join(elements), b"]"], array("Q"))) == elements
    marked = codecs.BOM_UTF8 + raw_lines[1]
    assert list(collecting._payloads([marked, marked], array("Q"))) == [b'{"a": 1}', marked.strip()]
    assert list(collecting._payloads([b'[{"a": 1},\n', b"2]"], elements := array("Q"))) == [b'{"a": 1}', b"2"]
    assert [*elements] == [0, 0]


STEERING = "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\u2066", "\r", "\u2028"


@pytest.mark.parametrize("text", STEERING)
def test_nothing_that_is_printed_steers_a_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = {
        "index": 0,
        "event_id": text,
        "status": "refused",
        "reason": text,
        "pointer": text,
        "detail": text,
    }
    collecting._Tally(sent=1, refused=1, _verdicts=[verdict | {"line": None}]).show()
    output.say(text)
    output.remark(text)
    output.show_fields([("name", text), (text, "value")])
    output.show_table((text, "b"), [("a", text)], empty="")
    for width in (200, 20):  # as lines, and as columns
        print_rows(Console(file=sys.stdout, width=width), [{text: "a", "b": text}], text)
    print_rows(Console(file=sys.stdout), [], text)
    chart.show(Console(file=sys.stdout), [{text: text, f"n{text}": n} for n in (1, 2)])
    Console(file=sys.stdout).print(Ingestion(problems=(text,)).lines()[-1])
    guard.complain(text)
    output.emit({"name": text, "plain": "é 😀"})
    captured = capsys.readouterr()
    assert not {c for c in captured.out + captured.err if not c.isprintable()} - {"\n"}
    assert json.loads(captured.out[captured.out.index("{\n") :]) == {"name": text, "plain": "é 😀"}


def test_control_characters_of_data_are_replaced_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.write("a\x1b[1mb\r\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.write("a\x1b[1mb\r\n")
    assert capsys.readouterr().out == "a\x1b[1mb\r\na\N{REPLACEMENT CHARACTER}[1mb\n"


def test_piped_data_is_utf_8_in_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(piped, "latin-1", "backslashreplace"))
    sys.stdout.write("1 ")
    output.write("€\n")
    assert piped.getvalue() == "1 €\n".encode()


def test_a_list_or_an_object_is_shown_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row = {"l": [Decimal("1.10"), None, True], "o": {"a": "é", "at": at}, "b": False}
    print_rows(Console(file=sys.stdout, width=200), [row], "x")
    stdout = capsys.readouterr().out
    assert "[1.10,null,true]" in stdout
    assert '{"a":"é","at":"2026-01-01T00:00:00Z"}' in stdout
    assert " false " in stdout


def test_an_error_of_grpc_is_shown_by_its_details() -> None:
    raw = '<_InactiveRpcError of RPC that terminated with:\n\tstatus = X\n\tdetails = "no \\"a\\" here."\n>'
    assert first_line(Exception(raw)) == 'no \\"a\\" here'
    assert first_line(Exception("<_InactiveRpcError of RPC>\nmore")) == "<_InactiveRpcError of RPC>"
    assert first_line(ValueError()) == "ValueError"


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PULSE_INGEST__FLUSH_SECS", "1", "is not a setting. Did you mean PULSE_INGEST__FLUSH_SECONDS?"),
        ("PULSE_INGEST_FLUSH_SECONDS", "1", "is not a setting. Did you mean PULSE_INGEST__FLUSH_SECONDS?"),
        ("PULSE_NOWHERE__X", "1", "PULSE_NOWHERE__X is not a setting. Unset it"),
        ("PULSE_INGEST__FLUSH_SECONDS", "abc", "PULSE_INGEST__FLUSH_SECONDS: should be a valid number"),
        ("PULSE_ALERTS__NOTIFIERS", "log", "PULSE_ALERTS__NOTIFIERS is not what its setting takes"),
        ("PULSE_DAGSTER__TOKEN", "hush", "PULSE_DAGSTER__TOKEN: value should have at least 16"),
        ("PULSE_HOME", "/dev/null", "Pulse has never run in /dev/null"),
    ],
)
def test_a_setting_that_is_wrong_or_unknown_is_an_error(
    tmp_path: Path, variable: str, value: str, expected: str
) -> None:
    """On one line, which never shows the value: it may be a secret."""
    env_vars = {"PULSE_HOME": str(tmp_path), variable: value}
    done = subprocess.run(
        [PULSE, "batch", "list"],
        env=os.environ | env_vars,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert expected in line
    assert "hush" not in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"kafka": {"pasword": "hush"}},
            "kafka.pasword in {} is not a setting. Did you mean kafka.password",
        ),
        ({"kafak": {"password": "hush"}}, "kafak in {} is not a setting. Did you mean kafka?"),
        ({"ingest": {"colour": 1}}, "ingest.colour in {} is not a setting. Remove it. Or run `pulse up`"),
        (["hush"], "{} cannot be read: it is not a JSON object"),
    ],
)
def test_an_unknown_setting_in_settings_json_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: Any, expected: str
) -> None:
    """A misspelt setting was silent, and the default held. `pulse up` keeps its own state under `local`."""
    monkeypatch.setenv("PULSE_HOME", str(tmp_path))
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UserError) as refused, with_settings():
        load_settings()
    assert expected.format(file) in str(refused.value)
    assert "hush" not in str(refused.value)
    file.write_text(json.dumps({"local": {"ports": {}}, "kafka": {"password": "hush"}}))
    with with_settings():
        assert load_settings().kafka.password.get_secret_value() == "hush"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PULSE_POSTGRES__ROLE_PASSWORDS__PULSE_API", "x"), ("PULSE_API_PORT", "tcp://10.0.0.1:8000")],
    ids=["a part of a mapping", "what Kubernetes sets"],
)
def test_variables_of_mappings_and_of_kubernetes_are_accepted(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    load_settings.cache_clear()
    assert load_settings() == Settings()


@pytest.mark.parametrize("options", [("--json",), ()], ids=" ".join)
def test_a_full_disk_under_the_output_is_reported_in_a_line(options: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PULSE, "config", *options], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output cannot be written: No space left on device\n",
    )


@pytest.mark.long
@pytest.mark.parametrize("command", ["up", "status", "down", "demo"])
@pytest.mark.sample(2)
def test_a_home_that_is_not_a_folder_is_refused(command: str) -> None:
    env_vars = {"PULSE_HOME": "/dev/null"}
    done = subprocess.run(
        [PULSE, command], env=os.environ | env_vars, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert command in ("status", "down") or "/dev/null cannot be used" in done.stderr
