"""promtool, which judges rules of Prometheus: the one on PATH, else built once per user with Go (minutes).

`make promtool` builds it; nothing else needs it, so the test that does is skipped without.
"""

import shutil
from pathlib import Path

from pulse_resources.local.downloads import Download, Report, run
from pulse_resources.local.prerequisites import go

MODULE, VERSION = "github.com/prometheus/prometheus", "v0.305.0"


def _build(folder: Path, report: Report) -> None:
    def tick(seconds: float) -> None:
        report(f"building with Go, {seconds:.0f} s")

    # As part of a module of its own: `go install` takes none that replaces others.
    (folder / "go.mod").write_text(f"module pulse\n\ngo 1.24\n\nrequire {MODULE} {VERSION}\n")
    options = ["-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", "promtool"]
    command = [go(), "build", "-C", str(folder), *options, f"{MODULE}/cmd/promtool"]
    run(command, "promtool", tick, {"CGO_ENABLED": "0"})


DOWNLOAD = Download(f"promtool-{VERSION}", "promtool", _build)


def find_program() -> str | None:
    """Its program, if there is one."""
    built = str(DOWNLOAD.path / "promtool") if DOWNLOAD.present() else None
    return shutil.which("promtool") or built


if __name__ == "__main__" and find_program() is None:
    DOWNLOAD.fetch(lambda line: None)
