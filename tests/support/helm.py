"""helm, and a schema of what Kubernetes takes: built and copied once per user, with Go (minutes).

`make helm` builds them; nothing else needs them, so the tests that do are skipped without.
"""

import os
import shutil
import subprocess
from pathlib import Path

from pulse_resources.local.downloads import Download, Report, run
from pulse_resources.local.prerequisites import go

MODULE, VERSION = "helm.sh/helm/v3", "v3.19.5"
KUBERNETES = "1.34"
_SCHEMA = "k8s.io/cli-runtime"
"""Its tests bring the OpenAPI document of a server; helm needs the module anyway."""


def _build(folder: Path, report: Report) -> None:
    def tick(seconds: float) -> None:
        report(f"building with Go, {seconds:.0f} s")

    (folder / "go.mod").write_text(f"module pulse\n\ngo 1.24.0\n\nrequire {MODULE} {VERSION}\n")
    # As helm's makers do: else it takes itself for one of Kubernetes 1.20 where it asks no cluster.
    versions = [
        f"-X {MODULE}/pkg/{package}.k8sVersion{part}={number}"
        for package in ("chartutil", "lint/rules")
        for part, number in zip(("Major", "Minor"), KUBERNETES.split("."), strict=True)
    ]
    options = ["-mod=mod", "-trimpath", f"-ldflags=-s -w {' '.join(versions)}", "-o", "helm"]
    command = [go(), "build", "-C", str(folder), *options, f"{MODULE}/cmd/helm"]
    run(command, "helm", tick, {"CGO_ENABLED": "0"})
    listed = [go(), "list", "-C", str(folder), "-m", "-f", "{{.Dir}}", _SCHEMA]
    module = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.strip()
    shutil.copyfile(Path(module, "artifacts", "openapi", "swagger.json"), folder / "kubernetes.json")


DOWNLOAD = Download(f"helm-{VERSION}", "helm", _build)
PROGRAM, SCHEMA = DOWNLOAD.path / "helm", DOWNLOAD.path / "kubernetes.json"


if __name__ == "__main__":
    os.nice(10)
    DOWNLOAD.fetch(lambda line: None)
