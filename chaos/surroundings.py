"""Environment of a check: the command line, this process's settings and connections, a superuser."""

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pyspark.sql.connect.session import SparkSession

from pulse_resources import postgres, task_settings
from pulse_resources.settings import load_settings

PULSE = str(Path(sys.executable).parent / "pulse")
INSTALLATION = "CHAOS_INSTALLATION"
"""Variable with the folder of another installation's programs, whose command line is run."""
TLS = ssl.create_default_context()
"""For clients of HTTP: each makes one of its own otherwise, which takes 20 ms of processor time."""
_LONGEST_S = 900


def pulse(
    *arguments: str, environment: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run the command line, with additional environment variables.

    Raises:
        AssertionError: it failed although `check` is true; contains its output.
    """
    env = os.environ | (environment or {})
    program = f"{env[INSTALLATION]}/pulse" if INSTALLATION in env else PULSE
    done = subprocess.run([program, *arguments], env=env, capture_output=True, text=True, timeout=_LONGEST_S)
    assert not check or done.returncode == 0, f"pulse {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done


def forget_connections() -> None:
    """Drop every cached client and setting of this process, after addresses have changed."""
    load_settings.cache_clear()
    task_settings.forget_clients()
    # The session is only forgotten, not closed: other processes of its stack share it.
    SparkSession._default_session = None
    SparkSession._active_session.session = None


@contextmanager
def with_settings(**environment: object) -> Iterator[None]:
    """Override settings of this process, and of processes it starts, while the block runs.

    Args:
        environment: by the variable's name without PULSE_, such as INGEST__MAX_ATTEMPTS.
    """
    variables = {f"PULSE_{name}": str(value) for name, value in environment.items()}
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    load_settings.cache_clear()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        load_settings.cache_clear()


def superuser() -> postgres.Connection:
    """Superuser session without row-level security and with autocommit."""
    settings = load_settings().postgres
    return psycopg.connect(settings.superuser_url(settings.database), autocommit=True)
