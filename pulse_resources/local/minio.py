"""MinIO, the embedded S3 service."""

from pathlib import Path
from urllib.parse import urlsplit

from pulse_resources.local import accounts, tls
from pulse_resources.local.accounts import Account
from pulse_resources.local.layout import PRIVATE, Layout
from pulse_resources.local.minio_program import DOWNLOAD, on_path
from pulse_resources.local.service import Service, listens, responds
from pulse_resources.settings import Settings

_SYSTEM_FOLDER = ".minio.sys"
"""MinIO's own folder beside the buckets."""


def service(layout: Layout, settings: Settings) -> Service:
    store = settings.object_store
    certificates = tls.certificates(layout, "minio")
    owner = accounts.account(layout, "minio")
    base = accounts.folder(layout, "minio", owner)
    program = accounts.reachable(owner, Path(on_path() or DOWNLOAD.path / "minio"), base)
    data, folder = base / "data", base / "certificates"
    return Service(
        name="minio",
        address=store.endpoint,
        command=(
            *(str(program), "server", "--address", urlsplit(store.endpoint).netloc, "--quiet"),
            *(("--certs-dir", str(folder)) if certificates else ()),
            str(data),
        ),
        env={
            "MINIO_ROOT_USER": store.access_key,
            "MINIO_ROOT_PASSWORD": store.secret_key.get_secret_value(),
            "MINIO_REGION": store.region,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            # Its scanner would read every object repeatedly only to count them.
            "MINIO_SCANNER_SPEED": "slowest",
            "GOMEMLIMIT": "384MiB",
        },
        setup=lambda: _setup(base, data, folder, certificates, owner),
        account=owner,
        ready=responds(f"{store.endpoint}/minio/health/ready", store.ca_file),
        prepare=True,
    )


def _setup(
    base: Path, data: Path, folder: Path, certificates: tls.Certificates | None, owner: Account | None
) -> None:
    data.mkdir(mode=PRIVATE, exist_ok=True)
    if (base / _SYSTEM_FOLDER).exists():  # data of a version that had no data folder
        for entry in sorted(base.iterdir(), key=lambda path: path.name == _SYSTEM_FOLDER):  # the marker last
            if entry not in (data, folder) and entry.name != accounts.PROGRAMS:
                if owner:
                    accounts.give_to(owner, entry)
                entry.rename(data / entry.name)
    if certificates:
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        accounts.give(owner, folder)
        certificates.copy(owner, certificate=folder / "public.crt", key=folder / "private.key")


def external(settings: Settings) -> Service:
    endpoint = settings.object_store.endpoint
    scheme, _, address = endpoint.partition("://")
    host = address.split("/")[0]
    if ":" not in host:
        host += ":443" if scheme == "https" else ":80"
    return Service("minio", endpoint, listens(host), prepare=True, external=True)
