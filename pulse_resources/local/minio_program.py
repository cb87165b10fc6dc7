"""MinIO binary: the one on PATH, else built once per user with Go.

`python -m pulse_resources.local.minio_program` builds it ahead of time without any package; `make setup` does
so while it installs them.
"""

import os
import shutil
from pathlib import Path

from pulse_resources.local.downloads import Download, Report, run
from pulse_resources.local.prerequisites import go

MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"


def _build(folder: Path, report: Report) -> None:
    def tick(seconds: float) -> None:
        report(f"building with Go, {seconds:.0f} s (3 to 7 minutes on 2 cores, once)")

    env = {"GOBIN": str(folder), "CGO_ENABLED": "0"}
    run([go(), "install", "-trimpath", "-ldflags=-s -w", MODULE], "MinIO", tick, env)


DOWNLOAD = Download(f"minio-{MODULE.rpartition('@')[2]}", "MinIO", _build)


def on_path() -> str | None:
    return shutil.which("minio")


def main() -> None:
    """Build MinIO unless it exists or is not needed."""
    needed = not (on_path() or DOWNLOAD.present() or "PULSE_OBJECT_STORE__ENDPOINT" in os.environ)
    if needed and shutil.which("go"):
        os.nice(10)  # others wait for what runs beside it
        DOWNLOAD.fetch(lambda detail: None)


if __name__ == "__main__":
    main()
