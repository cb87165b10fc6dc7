"""Two versions of Pulse on this machine, each in an environment of its own, as two wheels would be."""

import io
import os
import site
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.surroundings import INSTALLATION

REPOSITORY = Path(__file__).parent.parent.parent
MIGRATIONS = "pulse_resources/postgres/migrations"
_PYTHON = """#!/bin/bash
# A service, and Spark's workers once Spark has started again, take the current version; any other process
# that of its parent, as in a container.
version={venv}
case "$(tr '\\0' ' ' < /proc/$PPID/cmdline)" in
    *pulse_resources.local.supervisor*) version=$(readlink -f {current}) ;;
    *SparkConnectServer*)
        started=$(sed 's/.*) //' /proc/$PPID/stat | cut -d ' ' -f 20)
        [ "$started" -lt "$(cat {since})" ] || version=$(readlink -f {current}) ;;
esac
echo "$version $*" >> {log}
exec -a "$version/bin/python" "$version/bin/python3.11" "$@"
"""
_PULSE = """#!{venv}/bin/python
import sys
from pulse_api.__main__ import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Version:
    """An installation of one commit; all versions have the packages of this environment."""

    commit: str
    venv: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment by which the harness calls its command line."""
        return {INSTALLATION: str(self.venv / "bin")}

    def run(self, *arguments: str, **environment: str) -> str:
        """Run its Python; returns the output.

        Raises:
            AssertionError: it failed; contains its output.
        """
        with self.begin(*arguments, **environment) as process:
            output, errors = process.communicate()
        assert process.returncode == 0, f"{' '.join(arguments)} of {self.commit}: {output}{errors}"
        return output

    def begin(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start its Python."""
        command = [str(self.venv / "bin" / "python"), *arguments]
        return subprocess.Popen(
            command, env=without_path(os.environ) | environment, cwd=self.venv, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


class Versions:
    """Installations in one folder, one of which is the current one: services that start take it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current = folder / "current"
        self._since = folder / "since"
        """Clock ticks from the machine's start until the version became the current one."""
        self._log = folder / "starts.log"

    def install(self, commit: str) -> Version:
        """Install a commit of this repository."""
        code, venv = self._folder / commit / "code", self._folder / commit / "venv"
        code.mkdir(parents=True)
        archive = _git("archive", "--format=tar", commit)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(code, filter="data")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        packages = next((venv / "lib").iterdir()) / "site-packages"
        (packages / "version.pth").write_text("\n".join([str(code), *site.getsitepackages()]))
        words = {"venv": venv, "current": self._current, "since": self._since, "log": self._log}
        _write_program(venv / "bin" / "python3.11", None)
        _write_program(venv / "bin" / "python", _PYTHON.format(**words))
        _write_program(venv / "bin" / "pulse", _PULSE.format(**words))
        return Version(commit, venv)

    def make_current(self, version: Version) -> None:
        """Let services that start from now on be of this version."""
        ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
        self._since.write_text(f"{ticks:.0f}")
        following = self._folder / "following"
        following.symlink_to(version.venv)
        following.replace(self._current)

    def started(self, version: Version, module: str) -> bool:
        """Whether a process of this version has started with this module."""
        lines = self._log.read_text().splitlines()
        return any(line.startswith(f"{version.venv} ") and f" {module}" in line for line in lines)


def without_path(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose Python imports what is installed, not what a developer's PYTHONPATH names."""
    return {name: value for name, value in environment.items() if name != "PYTHONPATH"}


def commit_of(reference: str) -> str:
    """The full name of a commit.

    Raises:
        subprocess.CalledProcessError: there is none.
    """
    return _git("rev-parse", "--verify", f"{reference}^{{commit}}").decode().strip()


def before_newest_migration() -> str:
    """The newest commit whose data model is an earlier one."""
    added = _git("log", "-1", "--diff-filter=A", "--format=%H", "--", MIGRATIONS).decode().strip()
    return f"{added}^"


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


def _write_program(path: Path, text: str | None) -> None:
    """Write a program; None: the interpreter of this process, whose environment is the path's."""
    path.unlink(missing_ok=True)
    if text is None:
        path.symlink_to(Path(sys.executable).resolve())
    else:
        path.write_text(text)
        path.chmod(0o755)
