"""This machine: the folder with all state, its disk, and Python."""

import os
import shutil
import sys
from collections.abc import Iterator

from pulse_pipelines.monitoring.doctor.finding import Finding
from pulse_resources.settings import Settings

MACHINE = "machine"
PYTHON = (3, 11)
FREE_BYTES = 2 << 30
"""Free space below which Kafka and the object store soon stop accepting events."""


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Check Python's version, and whether the home is writable and has enough space."""
    version = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, PYTHON))
    fix = f"Make the environment with Python {needed}: make setup"
    yield Finding(MACHINE, "python", sys.version_info[:2] >= PYTHON, version, fix)
    home = settings.home
    exists = home.is_dir()
    folder = next(parent for parent in (home, *home.parents) if parent.exists())
    writable = os.access(folder, os.W_OK | os.X_OK) and folder.is_dir()
    fix = "Name a folder that this account may write to: PULSE_HOME=/path"
    yield Finding(MACHINE, "home", writable, f"{home}{'' if exists else ' does not exist yet'}", fix)
    free = shutil.disk_usage(folder).free
    fix = f"Free some: {FREE_BYTES >> 30} GiB are the least; or move PULSE_HOME to a larger disk"
    yield Finding(MACHINE, "disk", free >= FREE_BYTES, f"{free / 2**30:.1f} GiB free at {folder}", fix)
