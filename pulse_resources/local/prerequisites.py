"""Prerequisites: programs that Pulse needs but does not install."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from pulse_resources.errors import UserError

JAVA_MINIMUM = 17


@cache
def java() -> str:
    """Path of a recent enough Java."""
    home = os.environ.get("JAVA_HOME")
    candidate = str(Path(home) / "bin" / "java") if home else "java"
    program = shutil.which(candidate)
    version = java_version(program) if program else None
    if program and version is not None and version >= JAVA_MINIMUM:
        return program
    problem = f"{program} is version {version or 'unknown'}" if program else "no java was found"
    raise UserError(
        f"Java {JAVA_MINIMUM} or newer is needed for Kafka and Spark, but {problem}",
        fix=f"Install a JRE (Debian and Ubuntu: apt install openjdk-{JAVA_MINIMUM}-jre-headless) "
        "or point JAVA_HOME at one",
    )


def java_version(program: str) -> int | None:
    """Major version reported by `program -version`: 8 for "1.8.0_402", 17 for "17.0.15"."""
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def go() -> str:
    """Path of the Go compiler, used once to build MinIO."""
    if program := shutil.which("go"):
        return program
    raise UserError(
        "Neither `minio` nor Go was found",
        fix="Put a minio binary on PATH, or install Go 1.24 or newer to have it built, "
        "or set PULSE_OBJECT_STORE__ENDPOINT to use an S3 service that you have",
    )


def check(services: Collection[str], *, minio_missing: bool) -> None:
    """Raise one UserError that lists everything missing for `services`."""
    needs: list[Callable[[], str]] = [java] if {"kafka", "spark"} & set(services) else []
    if "minio" in services and minio_missing:
        needs.append(go)
    problems = []
    for need in needs:
        try:
            need()
        except UserError as error:
            problems.append(error)
    if problems:
        raise UserError(
            "; ".join(problem.message for problem in problems),
            fix="; ".join(problem.fix or "" for problem in problems),
        )
