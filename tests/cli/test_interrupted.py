"""Ctrl-C ends a command with 130, and says in one line what goes on without it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import command, ended, of, waiting_for
from support.here import ingest_here as ingest
from support.ingest import Owner, event
from support.pipes import make_pipe

from chaos.waiting import wait
from pulse_api.cli import interrupted
from pulse_pipelines import pipes
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.monitoring.trace import sent
from pulse_pipelines.registry import keys

pytestmark = pytest.mark.usefixtures("stack")

WITHIN = {
    # What a command does while it waits for a table: its arguments, the table, and what is said of it.
    "query": (["tenant", "list"], "pdm_tenants", interrupted.NOTHING),
    "erasure": (["erase", "{}", "--where", "event_id=a", "--yes"], "erasures", interrupted.ERASURE),
    "of one dataset": (
        ["erase", "{}", "--dataset", "orders", "--where", "event_id=a", "--yes"],
        "erasures",
        interrupted.ERASURE,
    ),
    "backfill": (["backfill", "{}", "orders", "--from", "today"], "raw_objects", interrupted.BACKFILL),
    "replay": (["dlq", "replay", "{}", "--all"], "dead_letters", interrupted.LETTERS),
    "discard": (["dlq", "discard", "{}", "--all", "--yes"], "dead_letters", interrupted.LETTERS),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", WITHIN)
def test_an_interrupt_ends_the_work_of_the_command_itself(owner: Owner, case: str) -> None:
    arguments, table, line = WITHIN[case]
    command_line = [owner.tenant.slug if argument == "{}" else argument for argument in arguments]
    with waiting_for(table, *command_line) as (running, _):
        code, printed, stderr = ended(running, lambda: running.send_signal(signal.SIGINT))
    assert (code, printed, stderr.strip().splitlines()[-1]) == (130, "", line)
    assert "Traceback" not in stderr


def test_a_pipe_run_continues_after_an_interrupt(owner: Owner) -> None:
    make_pipe(owner, "planes")
    slug = owner.tenant.slug
    with command("pipe", "run", slug, "planes", "--wait") as running:
        wait(lambda: pipes.find(owner.tenant, "planes").asked_at is not None, "it asks for no run")
        actual = ended(running, lambda: running.send_signal(signal.SIGINT))
    assert actual == (130, "", f"The run continues. See it with: pulse pipe status {slug} planes\n")
    assert pipes.find(owner.tenant, "planes").asked_at is not None


def test_events_sent_before_an_interrupt_land(
    api_service: str, owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PULSE_KEY", keys.issue_key(owner.tenant, "test", [KeyScope.COLLECT]).text)
    file = tmp_path / "event.json"
    file.write_bytes(event("a"))
    with command("collect", owner.tenant.slug, str(file), "--wait") as running:
        assert of(running.stdout).readline().startswith("1 event: 1 accepted")
        code, _, stderr = ended(running, lambda: running.send_signal(signal.SIGINT))
    assert (code, stderr) == (130, interrupted.SETTLING.format(tenant=owner.tenant.slug) + "\n")
    assert sent.unsettled(owner.tenant, sent.marks(owner.tenant)) == 1
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["a"]


def test_an_interrupted_collect_counts_the_accepted_events(
    api_service: str, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_KEY", keys.issue_key(owner.tenant, "test", [KeyScope.COLLECT]).text)
    before = sent.marks(owner.tenant)
    with command("collect", owner.tenant.slug, "-") as running:
        typed = of(running.stdin)
        typed.write("".join(f"{event(f'e{number}').decode()}\n" for number in range(501)))
        typed.flush()  # more than a request's; the rest waits for more
        wait(lambda: sent.marks(owner.tenant) != before, "nothing was sent")
        code, _, stderr = ended(running, lambda: running.send_signal(signal.SIGINT))
    assert code == 130
    assert stderr.startswith("Sending has stopped. ")


def test_a_question_is_interrupted(owner: Owner) -> None:
    with command("dataset", "delete", owner.tenant.slug, "orders") as running:
        question = of(running.stderr).read(len("Delete the dataset"))
        code, _, stderr = ended(running, lambda: running.send_signal(signal.SIGINT))
    assert (code, question) == (130, "Delete the dataset")
    assert stderr.endswith(f"{interrupted.NOTHING}\n")


def test_an_interrupt_waits_until_an_import_is_complete() -> None:
    loaded = False

    def load() -> None:
        nonlocal loaded
        with interrupted.later():
            signal.raise_signal(signal.SIGINT)
            loaded = True

    with pytest.raises(KeyboardInterrupt):
        load()
    assert loaded


def test_an_interrupt_during_the_first_import_prints_no_traceback() -> None:
    interrupted_import = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from pulse_api.__main__ import main\n"
        "main()"
    )
    run = subprocess.run([sys.executable, "-c", interrupted_import], capture_output=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")
