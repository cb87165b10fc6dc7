"""MinIO, the S3 service of one machine: from PATH, or built once with Go."""

import shutil
from pathlib import Path

from pulse_resources.local.downloads import Download, Report, run
from pulse_resources.local.layout import Layout
from pulse_resources.local.prerequisites import go
from pulse_resources.local.service import Service, listens, responds
from pulse_resources.settings import Settings

MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"


def _build(folder: Path, report: Report) -> None:
    def tick(seconds: float) -> None:
        report(f"building with Go, {seconds:.0f} s (about 3 minutes on 2 cores, once)")

    env = {"GOBIN": str(folder), "CGO_ENABLED": "0"}
    run([go(), "install", "-trimpath", "-ldflags=-s -w", MODULE], "MinIO", tick, env)


DOWNLOAD = Download(f"minio-{MODULE.rpartition('@')[2]}", "MinIO", _build)


def on_path() -> str | None:
    return shutil.which("minio")


def service(layout: Layout, settings: Settings) -> Service:
    store = settings.object_store
    address = store.endpoint.removeprefix("http://")
    program = on_path() or str(DOWNLOAD.path / "minio")
    return Service(
        name="minio",
        address=store.endpoint,
        command=(program, "server", "--address", address, "--quiet", str(layout.folder("minio"))),
        env={
            "MINIO_ROOT_USER": store.access_key,
            "MINIO_ROOT_PASSWORD": store.secret_key.get_secret_value(),
            "MINIO_REGION": store.region,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            # Its scanner reads every object again and again, only to count them.
            "MINIO_SCANNER_SPEED": "slowest",
            "GOMEMLIMIT": "384MiB",
        },
        ready=responds(f"{store.endpoint}/minio/health/ready"),
        prepare=True,
    )


def external(settings: Settings) -> Service:
    endpoint = settings.object_store.endpoint
    scheme, _, rest = endpoint.partition("://")
    host = rest.split("/")[0]
    if ":" not in host:
        host += ":443" if scheme == "https" else ":80"
    return Service("minio", endpoint, listens(host), prepare=True, external=True)
