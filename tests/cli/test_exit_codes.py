"""Every end of a command has its exit code, from one place: errors, outages, closed pipes, full disks."""

import errno
import json
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import psycopg
import pytest
import typer
from support.commands import command, ended, of, waiting_for
from support.entities import SLUG, entity, make_entities
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.pipes import make_pipe, settle
from typer.testing import CliRunner

from chaos.surroundings import PULSE, TLS, superuser
from chaos.waiting import PATIENCE_S, wait
from pulse_api import cli
from pulse_api.cli import guard
from pulse_pipelines import pipes, registry
from pulse_pipelines.domain.syncs import Part
from pulse_pipelines.entities import syncs
from pulse_resources.errors import Conflict, Fenced, NotFound, PulseError, Terminal, Transient, UserError
from pulse_resources.settings import Settings

ROOT = Path(__file__).parents[2]
RUNNER = CliRunner()


def at_a_question(error: BaseException) -> BaseException:
    """What a question makes of Ctrl-C, or of an end of its input."""
    try:
        try:
            raise error
        except (KeyboardInterrupt, EOFError):
            raise typer.Abort from None
    except typer.Abort as abort:
        return abort


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("a"), 2),
        (NotFound("a"), 2),
        (Conflict("a"), 2),
        (typer.BadParameter("a"), 2),
        (FileNotFoundError(errno.ENOENT, "a", "file"), 2),
        (Transient("a"), 1),
        (Terminal("a"), 1),
        (Fenced("a"), 1),
        (PulseError("a"), 1),
        (psycopg.OperationalError("a"), 1),
        (httpx.RemoteProtocolError("a"), 1),
        (confluent_kafka.KafkaException("a"), 1),
        (ConnectionResetError(errno.ECONNRESET, "a"), 1),
        (BrokenPipeError(errno.EPIPE, "of a process that helps: the output is read"), 1),
        (OSError(errno.ENOSPC, "a", "file"), 1),
        (typer.Abort(), 1),
        (typer.Exit(guard.UNDECIDED), 3),
        (KeyboardInterrupt(), 130),
        (at_a_question(KeyboardInterrupt()), 130),
        (at_a_question(EOFError()), 2),
        (RuntimeError("a bug"), 1),
    ],
    ids=repr,
)
def test_every_error_has_its_code(error: BaseException, code: int) -> None:
    assert guard.code_of(error) == code


def test_no_other_place_decides() -> None:
    """Commands end with an error, or with a code that has a name."""
    literal = re.compile(r"typer\.Exit\(.*\d|sys\.exit\(\d|SystemExit\(")
    places = [
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "pulse_api" / "cli").glob("*.py")
        for line in path.read_text().splitlines()
        if literal.search(line)
    ]
    assert places == []


def test_help_and_the_page_name_every_code() -> None:
    help_text = " ".join(RUNNER.invoke(cli.app, ["--help"], env={"COLUMNS": "80"}).output.split())
    table = (ROOT / "docs" / "cli.md").read_text()
    for code, meaning in guard.CODES.items():
        assert f"{code} {meaning}" in help_text
        assert f"| {code} | {meaning} |" in table


@pytest.mark.parametrize(
    "arguments", [["config", "--json"], ["config"], ["--help"], ["nosuch"]], ids=" ".join
)
@pytest.mark.sample(2)
def test_a_pipe_that_is_closed_before_ends_a_command_silently(arguments: list[str]) -> None:
    """With little output it breaks no sooner than at the end."""
    with command(*arguments) as running:
        of(running.stdout).close()
        closed = arguments == ["nosuch"]
        if closed:
            of(running.stderr).close()
        assert (running.wait(timeout=PATIENCE_S), "" if closed else of(running.stderr).read()) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "table"])
@pytest.mark.sample(1)
def test_a_pipe_that_is_closed_in_the_midst_ends_a_command_silently(
    owner: Owner, options: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    owner.send(*(event(f"{number:0100}") for number in range(1_000)))
    ingest(owner)
    assert len(owner.rows()) == 1_000, "more than a pipe holds"
    with command("preview", owner.tenant.slug, "orders", "--limit", "1000", *options) as running:
        printed = of(running.stdout)
        assert printed.read(1)  # a document is one line
        printed.close()
        assert (running.wait(timeout=PATIENCE_S), of(running.stderr).read()) == (141, "")


@pytest.mark.slow  # of closed pipes the two tests above have a case each
def test_a_check_that_fails_into_a_closed_pipe_ends_as_every_other(stack: Settings) -> None:
    with command("doctor") as running:
        of(running.stdout).close()
        assert running.wait(timeout=PATIENCE_S) == 141


def test_a_confirmation_without_input_is_a_wrong_request(owner: Owner) -> None:
    """In a script it was `Aborted.`, with the code of a failure."""
    done = RUNNER.invoke(cli.app, ["dataset", "delete", owner.tenant.slug, "orders"], input="")
    assert done.exit_code == 2
    assert (
        done.stderr.splitlines()[-1]
        == "error: no one answers the question. Answer it in a terminal, or add --yes"
    )
    assert [dataset.slug for dataset in registry.list_datasets(owner.tenant)] == ["orders"]


def shell(script: str, *arguments: bytes, **environment: str) -> "subprocess.CompletedProcess[bytes]":
    """What became of a line of a shell, which can close streams, and pass bytes that are no text."""
    line = ["sh", "-c", f'pulse() {{ "{PULSE}" "$@"; }}; {script}', "sh", *arguments]
    return subprocess.run(
        line, capture_output=True, env=os.environ | environment, timeout=PATIENCE_S, check=False
    )


def test_a_closed_standard_input_is_an_empty_one(owner: Owner) -> None:
    """It was an AttributeError, with its traceback."""
    done = shell(f"pulse schema publish {owner.tenant.slug} orders - <&-")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    done = shell(f"pulse erase {owner.tenant.slug} --where context.ip=1 <&-")
    assert (done.returncode, done.stderr[:38]) == (2, b"error: erasing needs a confirmation. C")


def test_an_argument_that_is_not_text_is_a_wrong_request(stack: Settings) -> None:
    """It was a UnicodeEncodeError of the driver of Postgres, with its traceback."""
    done = shell('pulse preview "$1" orders', b"\xff")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"error: an argument is not text in the terminal's encoding. Write it in UTF-8\n"


def test_an_error_that_cannot_be_written_keeps_its_code(stack: Settings) -> None:
    """It was Python's 120."""
    assert shell("pulse preview nobody orders 2>/dev/full").returncode == 2


def test_characters_outside_the_output_encoding_are_escaped(owner: Owner) -> None:
    """It was a UnicodeEncodeError, with its traceback."""
    done = shell(f"pulse sql {owner.tenant.slug} \"select chr(233) || 'x' as u\"", PYTHONIOENCODING="ascii")
    assert (done.returncode, rb"\xe9x" in done.stdout) == (0, True), done.stderr


def test_the_error_for_an_invalid_tenant_name_does_not_suggest_to_create_it(stack: Settings) -> None:
    done = RUNNER.invoke(cli.app, ["sql", "select 1"])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: no such tenant [tenant=select 1]. Look with: pulse tenant list\n",
    )


def test_a_closed_output_is_not_an_error() -> None:
    done = subprocess.run(f"'{PULSE}' config >&-", shell=True, capture_output=True, text=True)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_a_full_disk_under_the_help_is_reported_in_a_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([PULSE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the output cannot be written: No space left on device\n",
    )


def test_a_connection_that_postgres_ends_is_an_outage(stack: Settings) -> None:
    with waiting_for("pdm_tenants", "tenant", "list") as (running, backend), superuser() as administrator:
        actual = ended(running, lambda: administrator.execute("SELECT pg_terminate_backend(%s)", [backend]))
    assert actual == (
        1,
        "",
        "error: Postgres ended the connection: terminating connection due to administrator command. "
        "Check with `pulse status` that it is up again; then repeat the command.\n",
    )


@pytest.mark.parametrize("error", [httpx.RemoteProtocolError, httpx.ReadError])
def test_a_connection_that_the_api_ends_is_an_outage(
    error: type[httpx.TransportError], capsys: pytest.CaptureFixture[str]
) -> None:
    def end() -> None:
        connection, _ = server.accept()
        connection.recv(65_536)
        if error is httpx.ReadError:  # by a reset, as when the process is killed
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(end)
        with pytest.raises(error) as caught:
            httpx.get(
                f"http://127.0.0.1:{server.getsockname()[1]}", trust_env=False, timeout=PATIENCE_S, verify=TLS
            )
    assert guard.tell(caught.value)
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: the API ended the connection: ")
    assert stderr.endswith("Check with `pulse status` that it is up again; then repeat the command.\n")
    assert stderr.count("\n") == 1


def test_an_object_store_that_is_down_is_an_outage(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.send(event("a"))
    ingest(owner)
    monkeypatch.setenv("PULSE_OBJECT_STORE__ENDPOINT", "http://127.0.0.1:1")
    arguments = ["erase", owner.tenant.slug, "--where", "event_id=a", "--dry-run"]
    done = subprocess.run([PULSE, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the object store does not answer: ")


def full_sync(owner: Owner, name: str, *keys: str) -> None:
    """A full sync of these entities."""
    taking = syncs.begin(owner.tenant, SLUG, Part(name, "0", None, True, True, True))
    owner.send(*(entity(key) for key in keys))
    syncs.finish(owner.tenant, SLUG, taking, ())
    settle(owner)
    with superuser() as connection:  # as its run does
        connection.execute("UPDATE pipes SET asked_at = NULL WHERE tenant_id = %s", [owner.tenant.tenant_id])


def followed(owner: Owner, end: Callable[[], object], *options: str) -> Any:
    """The end of `pulse pipe run --wait`, whose run is done meanwhile."""
    arguments = ["pipe", "run", owner.tenant.slug, SLUG, "--wait", *options]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(RUNNER.invoke, cli.app, arguments)
        wait(lambda: pipes.find(owner.tenant, SLUG).asked_at is not None, "it asks for no run")
        assert not running.done(), "it waits"
        end()
        return running.result(timeout=PATIENCE_S)


def test_a_held_pipe_run_has_its_own_exit_code(owner: Owner) -> None:
    make_entities(owner)
    make_pipe(owner, SLUG)
    done = followed(owner, lambda: full_sync(owner, "first", "DE", "FR", "ES"))
    assert (done.exit_code, done.stdout) == (0, "done: 3 new, 0 changed, 0 unchanged, 0 deleted, 0 refused\n")
    result = followed(owner, lambda: full_sync(owner, "second", "DE"), "--json")
    number = syncs.list_syncs(owner.tenant, SLUG)[0].sync_id
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (guard.UNDECIDED, "held"), result.output
    target = f"{owner.tenant.slug} {SLUG} {number}"
    assert f"Decide with: pulse sync commit {target}, or pulse sync rollback {target}" in result.stderr
