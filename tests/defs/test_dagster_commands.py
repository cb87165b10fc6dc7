"""Dagster's own commands in a checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg_pool import PoolTimeout

from pulse_pipelines import definitions
from pulse_resources.errors import Transient
from pulse_resources.local.layout import repository
from pulse_resources.settings import Settings

DAGSTER = str(Path(sys.executable).parent / "dagster")


def dagster(home: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A command of Dagster, without the variables of `pulse up`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DAGSTER_")}
    return subprocess.run(
        [DAGSTER, *words],
        cwd=repository(),
        env=inherited | {"PULSE_HOME": str(home)} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_a_command_without_a_stack_names_the_missing_stack(tmp_path: Path) -> None:
    done = dagster(tmp_path, "definitions", "validate")
    assert done.returncode == 1
    assert f"Pulse has never run in {tmp_path}. Start it there with `pulse up`" in done.stdout + done.stderr


def test_a_stopped_stack_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> str:
        raise PoolTimeout("couldn't get a connection after 10.00 sec")

    monkeypatch.setattr(definitions, "registry_fingerprint", silent)
    with pytest.raises(Transient, match=r"Postgres does not answer.*`pulse up`"):
        definitions.defs.load_fn()


@pytest.mark.slow
def test_the_commands_of_the_page_work_with_a_stack(stack: Settings) -> None:
    """The commands of docs/control-room.md."""
    validated = dagster(stack.home, "definitions", "validate")
    assert "Validation successful for code location pulse" in validated.stdout + validated.stderr
    jobs = dagster(stack.home, "job", "list")
    assert "Job: ingest" in jobs.stdout, jobs.stderr
    assets = dagster(stack.home, "asset", "list", "-m", "pulse_pipelines.definitions")
    assert assets.returncode == 0, assets.stderr
