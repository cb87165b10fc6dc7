"""The embedded stack with real services: idempotent, self-healing, and gone when it is down."""

import compileall
import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from support.faults import AtPoint
from support.stack import choose_ports
from typer.testing import CliRunner

from chaos.surroundings import forget_connections
from chaos.waiting import PATIENCE_S
from pulse_api.cli.stack import app
from pulse_pipelines.domain.key import Presented
from pulse_resources.errors import Transient, UserError
from pulse_resources.local import (
    accounts,
    environment,
    logs,
    ports,
    prerequisites,
    processes,
    provision,
    services,
    stack,
    state,
)
from pulse_resources.local.downloads import Download
from pulse_resources.local.layout import Layout, cache
from pulse_resources.local.runner import Runner
from pulse_resources.local.service import Service, listens
from pulse_resources.local.status import Row, status
from pulse_resources.process import niceness
from pulse_resources.settings import Settings

FAST = "postgres,minio"
CLI = CliRunner()


def run(*arguments: str, code: int = 0) -> str:
    """A `pulse` command in this process; its output."""
    result = CLI.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def rows(layout: Layout) -> dict[str, Row]:
    return {row.service: row for row in status(layout).rows}


def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def members(layout: Layout) -> set[int]:
    return processes.marked(str(layout.home))


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    """An empty $PULSE_HOME, stopped and removed afterwards, wherever its services keep their data."""
    home = tmp_path / "home"
    monkeypatch.setenv("PULSE_HOME", str(home))
    for variable in provision.ADDRESS_SETTINGS.values():
        monkeypatch.delenv(variable, raising=False)
    forget_connections()
    yield Layout(home)
    CLI.invoke(app, ["down"])
    for folder in accounts.elsewhere(home):
        shutil.rmtree(folder)
    forget_connections()


def test_a_stack_survives_restarts_crashes_and_partial_starts(layout: Layout) -> None:
    """One stack, one story: each step needs the state that the one before left."""
    layout.home.mkdir()
    choose_ports(layout.home)  # or another stack could take the API's before the API starts
    output = run("up", "--only", "postgres,kafka,minio")
    first = rows(layout)
    assert {row.state for row in first.values()} == {"up"}
    assert all(row.address in output for row in first.values())

    # The same again starts nothing.
    assert "up already" in run("up", "--only", "postgres,kafka,minio")
    assert {n: r.pid for n, r in rows(layout).items()} == {n: r.pid for n, r in first.items()}

    # More is started beside it, and nothing else; the operator's key is shown once and kept nowhere.
    output = run("up", "--only", "api")
    before, first = first, rows(layout)
    assert set(first) - set(before) == {"api"}
    assert {name: first[name].pid for name in before} == {name: row.pid for name, row in before.items()}
    assert first["api"].address in output
    assert get(first["api"].address + "/healthz") == get(first["api"].address + "/readyz") == 200
    (key,) = re.findall(r"Operator key, shown once: (pulse_operator_\S+)", output)
    opened = Presented.parse(key)
    assert opened
    assert opened.secret.encode() not in b"".join(p.read_bytes() for p in files(layout))
    assert "pulse_operator_" not in run("up", "--only", "api")
    document = json.loads(CLI.invoke(app, ["up", "--only", "api", "--json"]).stdout)
    assert (document["started"], document["operator_key"]) == (False, None)
    assert document["addresses"]["api"] == first["api"].address

    # Secrets are on no command line and in no readable file.
    settings = json.loads(layout.settings_file.read_text())
    secrets = [value for key, value in settings["local"]["secrets"].items() if "session" not in key]
    commands = b"".join(Path(f"/proc/{p}/cmdline").read_bytes() for p in members(layout))
    assert not [secret for secret in secrets if secret.encode() in commands]
    assert stat.S_IMODE(layout.settings_file.stat().st_mode) == 0o600

    # What dies comes back, at the same address; also where what it needs died with it.
    victims = {name: first[name].pid for name in ("api", "kafka", "postgres")}
    for victim in victims.values():
        assert victim
        os.kill(victim, signal.SIGKILL)
    for name, victim in victims.items():
        until(lambda name=name: rows(layout)[name].restarts > 0 and rows(layout)[name].up)  # type: ignore[misc]
        assert rows(layout)[name].address == first[name].address
        assert rows(layout)[name].pid != victim

    # Without a supervisor the services go on, and the next `up` replaces them: none runs double.
    supervisor = first["supervisor"].pid
    assert supervisor
    os.kill(supervisor, signal.SIGKILL)
    # A killed process is seen for a moment after the signal: only then is the stack unsupervised.
    until(lambda: "supervisor" not in rows(layout))
    assert "unsupervised" in run("status", code=1)
    orphans = members(layout)
    assert orphans
    output = run("up", "--only", "postgres,kafka,minio,api")
    assert "have been stopped" in output
    assert "pulse_operator_" not in output
    assert not orphans & members(layout)
    again = rows(layout)
    assert {row.state for row in again.values()} == {"up"}
    addresses = {row.service: row.address for row in again.values()}
    assert addresses == {row.service: row.address for row in first.values()}

    # Down means gone.
    assert "stopped" in run("down")
    assert members(layout) == set()
    assert not [row for row in again.values() if row.address and ports.answers(*_split(row))]
    assert "not running" in run("down")
    assert "Start it with `pulse up`" in run("status", code=1)


@pytest.mark.slow
def test_the_api_stops_before_the_services_that_it_needs(layout: Layout) -> None:
    run("up", "--only", "postgres,kafka,minio,api")
    api = rows(layout)["api"].pid
    assert api
    needed = [row.pid for row in rows(layout).values() if row.service in ("postgres", "kafka", "minio")]
    with subprocess.Popen([sys.executable, "-c", "from pulse_api.cli.stack import app; app()", "down"]):
        until(lambda: not Path(f"/proc/{api}").exists())
        # Kafka alone takes a second to end: none of them may have gone first.
        assert [pid for pid in needed if Path(f"/proc/{pid}").exists()] == needed


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own URL
        return answer.status


def files(layout: Layout) -> Iterator[Path]:
    """Everything that the stack has written, data included."""
    roots = [layout.home, *accounts.elsewhere(layout.home)]
    return (path for root in roots for path in root.rglob("*") if path.is_file())


def _split(row: Row) -> tuple[str, int]:
    host, _, port = row.address.rpartition("/")[2].rpartition(":")
    return host, int(port)


def test_a_service_given_by_address_is_used_and_left_alone(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("up", "--only", "minio")
    store_settings = json.loads(layout.settings_file.read_text())["object_store"]
    for key, value in store_settings.items():
        monkeypatch.setenv(f"PULSE_OBJECT_STORE__{key.upper()}", str(value))
    other = Layout(tmp_path / "other")
    monkeypatch.setenv("PULSE_HOME", str(other.home))
    assert "external" in run("up", "--only", "minio")
    row = rows(other)["minio"]
    assert (row.state, row.external, row.pid) == ("up", True, None)
    assert "object_store" not in json.loads(other.settings_file.read_text())
    run("down")
    monkeypatch.setenv("PULSE_HOME", str(layout.home))
    assert rows(layout)["minio"].up


def test_a_stack_that_cannot_start_names_the_cause_and_leaves_nothing(layout: Layout) -> None:
    layout.make()
    layout.folder("kafka").joinpath("data").write_text("in the way of Kafka's folder")
    output = run("up", "--only", "kafka,minio", code=1)
    assert "Formatting Kafka's storage failed" in output
    assert members(layout) == set()
    recorded = state.read(layout)
    assert recorded
    assert recorded.culprit == "kafka"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PULSE_API__PORT", "70000", "should be less than or equal to 65535"),
        ("PULSE_API__PORT", "-1", "should be greater than or equal to 1"),
        ("PULSE_API__HEALTH_PORT", "70000", "should be less than or equal to 65535"),
        ("PULSE_LAKE__PORT", "0", "should be greater than or equal to 1"),
        ("PULSE_POSTGRES__PORT", "99999999999", "should be less than or equal to 65535"),
        ("PULSE_INGEST__FLUSH_SECONDS", "soon", "should be a valid number"),
    ],
)
def test_a_setting_that_is_wrong_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    """A port of 70000 was a traceback, -1 was said to be another program's, and an empty home stayed."""
    home = tmp_path / "home"
    monkeypatch.setenv("PULSE_HOME", str(home))
    monkeypatch.setenv(variable, value)
    output = run("up", code=2)
    assert f"a setting is wrong: {variable}: {message}" in " ".join(output.split())
    assert not home.exists()


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_port_taken_after_its_choice_is_replaced(layout: Layout, at: AtPoint, option: int) -> None:
    """Another program was faster: the stack gave up, and said that MinIO had ended three times.

    Or it was MinIO, too, which shares its port: requests went to either, and signatures did not match.
    """
    with socket.socket() as other:

        def take() -> int:
            port = int(json.loads(layout.settings_file.read_text())["local"]["ports"]["minio"])
            other.setsockopt(socket.SOL_SOCKET, option, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            return port

        occupied = at("stack.after_provision", take)
        output = run("up", "--only", "minio")
        assert f"taken port {occupied[0]}" in output
        assert rows(layout)["minio"].up
        assert not rows(layout)["minio"].address.endswith(str(occupied[0]))


@pytest.mark.slow
def test_a_port_taken_only_during_the_start_is_replaced(layout: Layout, at: AtPoint) -> None:
    """As where two stacks start at once: the other one gave up, too, while this one stopped its services."""
    other = socket.socket()

    def take() -> None:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", json.loads(layout.settings_file.read_text())["local"]["ports"]["minio"]))
        other.listen()
        threading.Thread(target=give_back, daemon=True).start()

    def give_back() -> None:
        with other:
            until(lambda: bool((recorded := state.read(layout)) and recorded.error))

    at("stack.after_provision", take)
    output = run("up", "--only", "minio")
    assert ("starting again" in output, rows(layout)["minio"].up) == (True, True)
    assert "ended" not in output


@pytest.mark.slow
def test_a_removed_home_is_created_again(layout: Layout) -> None:
    """Data that an earlier home left elsewhere, with passwords that are lost, is not used."""
    run("up", "--only", "postgres")
    run("down")
    data = (layout.home / "postgres").resolve()
    shutil.rmtree(layout.home)
    try:
        forget_connections()
        run("up", "--only", "postgres")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _is_removed(folder: Path) -> bool:
    """Remove a folder that services may still write to, and return whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_stack_whose_home_was_removed_stops_and_leaves_its_successor_alone(layout: Layout) -> None:
    """It went on, and started what its successor had stopped, in the successor's folder."""
    run("up", "--only", FAST)
    first = state.read(layout)
    assert first
    for folder in (*accounts.elsewhere(layout.home), layout.home):
        until(partial(_is_removed, folder))
    forget_connections()
    run("up", "--only", FAST)
    until(lambda: not first.supervisor.alive())
    second = state.read(layout)
    assert second
    assert second.supervised
    assert second.all_up
    assert second.supervisor != first.supervisor
    assert {row.restarts for row in second.services.values()} == {0}


def test_control_c_stops_the_started_services(layout: Layout) -> None:
    command = [sys.executable, "-c", "from pulse_api.cli.stack import app; app()"]
    for _ in range(3):  # on a busy machine it may be up before this process sees that it has begun
        with subprocess.Popen([*command, "up", "--only", FAST], stderr=subprocess.PIPE) as process:
            until(lambda: bool(members(layout)))
            process.send_signal(signal.SIGINT)
            if (code := process.wait(PATIENCE_S)) != 0:
                break
        run("down")
    assert code == 130
    until(lambda: not members(layout))


def test_addresses_are_chosen_once(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.make()
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        chosen = ports.choose(port, ())
        assert chosen != port
        monkeypatch.setenv("PULSE_POSTGRES__PORT", str(port))
        with pytest.raises(UserError, match="another program has that port"):
            provision.provision(layout)
    monkeypatch.setenv("PULSE_POSTGRES__PORT", str(chosen))
    monkeypatch.setenv("PULSE_API__PORT", str(ports.choose(port, (chosen,))))
    first = provision.provision(layout)
    assert first.postgres.port == chosen
    assert first.api.port == int(os.environ["PULSE_API__PORT"])
    assert json.loads(layout.settings_file.read_text())["api"] == {
        "port": first.api.port,
        "health_port": first.api.health_port,
    }
    monkeypatch.delenv("PULSE_POSTGRES__PORT")
    monkeypatch.delenv("PULSE_API__PORT")
    assert provision.provision(layout).model_dump() == first.model_dump()


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "1.8.0_402"', 8),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('java version "17" 2021-09-14 LTS', 17),
        ('openjdk version "21.0.5-ea" 2024-10-15', 21),
        ("no version here", None),
    ],
)
def test_java_is_checked(
    line: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    program.chmod(0o755)
    assert prerequisites.java_version(str(program)) == version
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    prerequisites.java.cache_clear()
    try:
        if version and version >= prerequisites.JAVA_MINIMUM:
            assert prerequisites.java() == str(program)
        else:
            with pytest.raises(UserError, match="Java 17 or newer is needed"):
                prerequisites.java()
    finally:
        prerequisites.java.cache_clear()


def test_all_missing_prerequisites_are_named_at_once(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    prerequisites.java.cache_clear()
    try:
        output = run("up", code=2)
    finally:
        prerequisites.java.cache_clear()
    assert "Java 17" in output
    assert "install Go" in output


def test_a_download_is_there_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fills: list[Path] = []

    def fill(folder: Path, report: Callable[[str], None]) -> None:
        fills.append(folder)
        (folder / "part").write_text("half")
        if len(fills) == 1:
            raise Transient("the network went away")

    download = Download("thing", "a thing", fill)
    with pytest.raises(Transient):
        download.fetch(print)
    assert not download.present()
    download.fetch(print)
    assert (download.path / "part").exists()
    download.fetch(print)
    assert len(fills) == 2
    assert [path.name for path in download.path.parent.iterdir() if "lock" not in path.name] == ["thing"]


def test_another_clone_s_packages_are_those_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linked, not installed once more; and what is in a clone names that clone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / "first" / ".venv", tmp_path / "second" / ".venv"
    assert not environment.take(second)
    venv.create(first)
    (packages,) = first.glob("lib/*/site-packages")
    (packages / "shop.py").write_text("import sys; print(sys.prefix)")
    script = first / "bin" / "shop"
    script.write_text(f"#!{first}/bin/python\nimport shop\n")
    script.chmod(0o755)
    compileall.compile_dir(packages, quiet=1)
    environment.keep(first)
    shutil.rmtree(first.parent)
    second.mkdir(parents=True)
    (second / "of-another-lock").touch()
    assert environment.take(second)
    assert not (second / "of-another-lock").exists()
    done = subprocess.run([second / "bin" / "shop"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{second}\n"
    module, compiled = sorted(second.glob("lib/*/site-packages/**/shop*.py*"))[::-1]
    assert [file.stat().st_nlink for file in (module, compiled)] == [2, 2], "used as they are"
    texts = [file for file in second.rglob("*") if file.is_file() and file != compiled]
    assert not [file for file in texts if str(first) in file.read_text("latin-1")]


def test_the_cache_has_few_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    for number in range(environment.MAX_ENVIRONMENTS + 2):
        monkeypatch.setattr(sys, "version", f"Python {number}")
        environment.keep(tmp_path / "bin")
        os.utime(cache() / environment.name(), (number, number))
        if number:  # the first is used again
            monkeypatch.setattr(sys, "version", "Python 0")
            assert environment.take(tmp_path / "taken")
    names = {path.name for path in cache().glob("environment-*")}
    assert len(names) == environment.MAX_ENVIRONMENTS
    assert environment.name() in names


@pytest.mark.parametrize("broken", [False, True])
def test_missing_downloads_are_fetched_in_parallel(
    broken: bool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(layout.home))
    both, lines = threading.Barrier(2, timeout=PATIENCE_S), list[str]()

    def one(_: Path, report: Callable[[str], None]) -> None:
        both.wait()
        while broken:  # until what failed beside it ends it
            report("goes on")
            time.sleep(0.01)

    def other(_: Path, report: Callable[[str], None]) -> None:
        both.wait()
        if broken:
            raise Transient("the network went away")

    class Progress:
        def step(self, title: str, detail: str = "") -> None: ...

        def done(self, line: str) -> None:
            lines.append(line)

    missing = [Download("one", "One", one), Download("other", "Other", other)]
    monkeypatch.setattr(services, "missing_downloads", lambda needed: [d for d in missing if not d.present()])
    with pytest.raises(Transient, match="went away") if broken else nullcontext():
        stack._fetch((), Progress())
    assert sorted(lines) == ([] if broken else ["One fetched in 0 s", "Other fetched in 0 s"])
    assert [download.present() for download in missing] == [not broken] * 2


def test_logs_are_bounded_while_they_are_written(tmp_path: Path) -> None:
    log = tmp_path / "kafka.log"
    with log.open("ab") as file, subprocess.Popen("cat", stdin=subprocess.PIPE, stdout=file) as service:  # noqa: S607
        assert service.stdin

        def say(line: bytes) -> None:
            size = log.stat().st_size
            service.stdin.write(line)
            service.stdin.flush()
            until(lambda: log.stat().st_size == size + len(line))

        say(b"a" * 600 + b"b" * 500)
        logs.bound(tmp_path, 1_000)
        assert (log.stat().st_size, (tmp_path / "kafka.log.1").read_bytes()) == (0, b"a" * 500 + b"b" * 500)
        say(b"goes on")
        logs.bound(tmp_path, 1_000)
        assert log.read_bytes() == b"goes on"
        say(b"c" * 1_000)
        logs.bound(tmp_path, 1_000)
        assert {path.name for path in tmp_path.iterdir()} == {"kafka.log", "kafka.log.1"}


@pytest.mark.parametrize("requested", [niceness.BACKGROUND, niceness.FOREGROUND])
def test_services_get_their_requested_niceness(requested: int) -> None:
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as process:  # noqa: S607
        try:
            niceness.renice(process.pid, requested)
            nice_value = (
                requested if requested > 0 or os.getuid() == 0 else 0
            )  # who may not ask for more has as much
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice_value
            group = Path(f"/proc/{process.pid}/autogroup")  # where sessions share the processors
            assert not group.exists() or group.read_text().endswith(f"nice {nice_value}\n")
        finally:
            process.kill()


@pytest.mark.parametrize("length", [10, 150], ids=["in its home", "in the folder for temporary files"])
def test_no_empty_folder_of_the_code_server_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """A Unix socket's path is short, so that of a long home is elsewhere, and was left there."""
    home, temporary = tmp_path / ("h" * length), tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("PULSE_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    Layout(home).make()
    folder = Settings().code_server_socket.parent
    assert folder.parent == (home if length == 10 else temporary)
    folder.mkdir()
    (folder / "socket").touch()
    run("down")
    assert folder.exists(), "a server of which `down` does not know uses it"
    (folder / "socket").unlink()
    run("down")
    assert not folder.exists()


def test_down_refuses_while_up_prepares(layout: Layout) -> None:
    layout.make()
    lock = stack._lock(layout)
    assert lock is not None
    try:
        assert "still preparing" in run("down", code=1)
    finally:
        os.close(lock)


@dataclass
class Supervised:
    """A service without use, under a runner in this process."""

    layout: Layout
    runner: Runner
    board: state.Board
    stop: threading.Event
    answers: threading.Event
    """Whether it is ready."""

    def now(self) -> state.ServiceState:
        return service_state(self.layout)

    def kill(self) -> None:
        process = self.now().process
        assert process
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def supervised(layout: Layout) -> Iterator[Supervised]:
    layout.make()
    me, stop, answers = processes.ProcessId.of(os.getpid()), threading.Event(), threading.Event()
    assert me
    board = state.Board(layout, me)
    service = Service(
        "slow", "", command=("sleep", "3600"), ready=answers.is_set, stop_timeout=1.0, start_timeout=0.3
    )
    runner = Runner(layout, service, board, stop, {})
    supervised_stack = Supervised(layout, runner, board, stop, answers)
    answers.set()
    runner.start()
    try:
        until(lambda: supervised_stack.now().phase == "up")
        yield supervised_stack
    finally:
        stop.set()
        runner.join()
        assert supervised_stack.now().phase == "stopped"
        layout.stack_file.unlink()  # which says that this process is the supervisor


def test_a_reused_process_id_is_not_a_member() -> None:
    """On a busy machine a stop takes seconds, and would kill a process that has the id by then."""
    mine = processes.ProcessId.of(os.getpid())
    assert mine
    assert processes.living([mine]) == {mine.pid}
    assert processes.living([replace(mine, started=mine.started - 1)]) == set()
    with subprocess.Popen(["sleep", "3600"]) as child:  # noqa: S607
        try:
            table = processes.table()
            assert {mine.pid, child.pid} <= processes.family(mine, table)
            assert processes.family(replace(mine, started=mine.started - 1), table) == set()
        finally:
            child.kill()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id
        assert processes.living([replace(mine, pid=thread.native_id, started=1)]) == set()
    finally:
        over.set()
        thread.join()


def test_stopping_a_service_spares_a_process_with_a_reused_id(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, of, ended = supervised.now().process, processes.ProcessId.of, threading.Event()
    assert main
    with subprocess.Popen(["sleep", "3600"]) as stranger:  # noqa: S607

        def members(*_: object) -> set[int]:
            return set() if ended.is_set() else {main.pid, stranger.pid}

        def identify(pid: int) -> processes.ProcessId | None:
            """As if a member had ended after it was seen, and the stranger had its number since."""
            ended.set()
            process = of(pid)
            return (
                replace(process, started=process.started - 1) if process and pid == stranger.pid else process
            )

        try:
            with monkeypatch.context() as patched:
                patched.setattr(processes, "family", members)
                patched.setattr(processes.ProcessId, "of", identify)
                supervised.stop.set()
                supervised.runner.join()
            assert not main.alive()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_the_listener_of_another_stack_makes_no_service_ready(layout: Layout) -> None:
    """Two stacks chose one port at once: the slower one was up, and its clients were refused by the other."""
    layout.make()
    me = processes.ProcessId.of(os.getpid())
    assert me
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        slower = Service("slower", address, listens(address), command=("sleep", "0.3"))
        board, stop = state.Board(layout, me), threading.Event()
        runner = Runner(layout, slower, board, stop, {})
        runner.start()
        runner.join(PATIENCE_S)
        stop.set()
        runner.join()
    recorded = state.read(layout)
    layout.stack_file.unlink()
    assert recorded
    assert (recorded.culprit, recorded.error) == ("slower", "slower ended 3 times (exit code 0)")


def test_a_service_that_returns_slowly_does_not_stop_the_stack(supervised: Supervised) -> None:
    """What it needs may be away for longer than a start may take."""
    supervised.answers.clear()
    supervised.kill()
    until(lambda: supervised.now().restarts >= 2)
    assert not supervised.stop.is_set()
    supervised.answers.set()
    until(lambda: supervised.now().phase == "up")


_SLOW = """
import pathlib, time
until = time.monotonic() + 2.5
while time.monotonic() < until:
    pass
pathlib.Path("ready").touch()
time.sleep(3600)
"""


@pytest.mark.parametrize("was_up", [False, True])
def test_a_service_that_computes_longer_than_its_timeout_becomes_ready(layout: Layout, was_up: bool) -> None:
    """On a machine that was too busy each start was ended before it was ready, and made it busier."""
    layout.make()
    me, stop = processes.ProcessId.of(os.getpid()), threading.Event()
    assert me
    command = (sys.executable, "-c", _SLOW)
    ready = layout.home / "ready"
    service = Service("slow", "", ready.exists, command=command, stop_timeout=1.0, start_timeout=1.0)
    runner = Runner(layout, service, state.Board(layout, me), stop, {})
    if was_up:
        runner.up.set()
    runner.start()
    try:
        until(lambda: stop.is_set() or service_state(layout).phase in ("up", "restarting"))
        assert (service_state(layout).phase, service_state(layout).restarts) == ("up", 0)
    finally:
        stop.set()
        runner.join()
        layout.stack_file.unlink()  # which says that this process is the supervisor


def service_state(layout: Layout) -> state.ServiceState:
    recorded = state.read(layout)
    assert recorded
    return recorded.services["slow"]


def test_a_full_disk_does_not_stop_the_stack(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that cannot be started meanwhile is, later; and so is the state that could not be written."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(state, "write_atomically", full)
        disk.setattr(Runner, "_log", full)
        supervised.kill()
        until(lambda: supervised.board._state.services["slow"].restarts >= 2)
        assert not supervised.stop.is_set()
        assert supervised.now().restarts == 0
    until(lambda: supervised.board._state.services["slow"].phase == "up")
    supervised.layout.stack_file.unlink()
    supervised.board._behind = True  # as when the last change of all fell into that time
    supervised.board.catch_up()  # unless the supervisor's own thread was faster
    assert (supervised.now().phase, supervised.now().restarts >= 2) == ("up", True)
