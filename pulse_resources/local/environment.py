"""Python environments of `make setup`: installed once for a lock and a Python, then linked into every clone.

    python -m pulse_resources.local.environment take .venv    make it from the cache; 1: the cache has none
    python -m pulse_resources.local.environment keep .venv    put it into the cache

Runs before any package is installed. Packages are hard links where the file system has them: pip replaces
files, and writes into none.
"""

import hashlib
import os
import platform
import shutil
import sys
from pathlib import Path

from pulse_resources.local.downloads import Download, Report
from pulse_resources.local.layout import cache, repository

MAX_ENVIRONMENTS = 2
"""Environments in the cache: 1.8 GB each, of which clones share what they use."""
PLACE = b"@the environment@"
"""In the cache, the path of the environment, which scripts and pyvenv.cfg hold."""


def name() -> str:
    """Name of the environment of this checkout's lock, made by this Python."""
    lock = (repository() / "requirements.lock").read_bytes()
    made_by = "\0".join((sys.version, sys.base_prefix, platform.machine()))
    return f"environment-{hashlib.sha256(lock + made_by.encode()).hexdigest()[:16]}"


def take(target: Path) -> bool:
    """Make an environment from the cache, in place of what is there; False if the cache has none."""
    download = Download(name(), "packages", _nothing)
    if not download.present():
        return False
    shutil.rmtree(target, ignore_errors=True)
    _transfer(download.path, target, PLACE, os.fsencode(target))
    os.utime(download.path)
    return True


def keep(source: Path) -> None:
    """Put an environment into the cache, and remove those used longest ago."""

    def fill(folder: Path, report: Report) -> None:
        _transfer(source, folder, os.fsencode(source), PLACE)

    Download(name(), "packages", fill).fetch(lambda line: None)
    environments = sorted(cache().glob("environment-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in environments[MAX_ENVIRONMENTS:]:
        shutil.rmtree(old, ignore_errors=True)


def _nothing(folder: Path, report: Report) -> None:
    raise AssertionError("an environment is kept, never fetched")


def _transfer(source: Path, target: Path, old: bytes, new: bytes) -> None:
    def put(source_file: str, target: str) -> str:
        file = Path(source_file)
        names_folder = file.parent == source / "bin" or file.name == "pyvenv.cfg"
        if names_folder and old in (content := file.read_bytes()):
            Path(target).write_bytes(content.replace(old, new))
            shutil.copystat(file, target)
            return target
        try:
            os.link(file, target)
        except OSError:  # another file system, or one without links
            shutil.copy2(file, target)
        return target

    shutil.copytree(source, target, symlinks=True, copy_function=put, dirs_exist_ok=True)


def main(action: str, folder: str) -> int:
    place = Path(folder).absolute()
    try:
        if action == "take":
            return 0 if take(place) else 1
        keep(place)
    except OSError as error:  # shutil.Error among them
        print(f"  the cache of packages cannot be used: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
