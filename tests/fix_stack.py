"""The real services, started once per session on free ports in a folder of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse_resources import kafka, object_store, postgres
from pulse_resources.local import api as local_api
from pulse_resources.settings import Settings, load_settings

PULSE = str(Path(sys.executable).parent / "pulse")


def pulse(*arguments: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of this environment."""
    done = subprocess.run(
        [PULSE, *arguments], env=os.environ | env, capture_output=True, text=True, timeout=900
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def forget_connections() -> None:
    """Drop every cached client and setting of this process: the addresses have changed."""
    postgres.close_pools()
    for cached in (load_settings, kafka.admin, object_store.file_system):
        cached.cache_clear()


def stop() -> None:
    """Stop the stack and remove what it keeps outside its folder."""
    pulse("down")
    postgres_folder = load_settings().home / "postgres"
    if postgres_folder.is_symlink():  # root's folders are closed to Postgres' account
        shutil.rmtree(postgres_folder.resolve())


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Postgres, Kafka, MinIO and Spark, without Dagster: tests drive the batches themselves.

    With PULSE_TEST_HOME the stack in that folder is used and left running.
    """
    shared = os.environ.get("PULSE_TEST_HOME")
    os.environ["PULSE_HOME"] = shared or str(tmp_path_factory.mktemp("pulse"))
    pulse("up", "--without-dagster")
    forget_connections()
    yield load_settings()
    forget_connections()
    if not shared:
        stop()


@pytest.fixture(scope="session")
def api_service(stack: Settings) -> str:
    """The HTTP API beside the stack, started on demand; its address."""
    pulse("up", "--only", "api")
    load_settings.cache_clear()
    return local_api.url(load_settings())
