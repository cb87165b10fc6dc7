"""All services of the stack, in display order."""

from pulse_resources.local import (
    dagster,
    front_ends,
    kafka,
    minio,
    minio_program,
    postgres,
    prerequisites,
    provision,
    spark,
)
from pulse_resources.local.downloads import Download
from pulse_resources.local.layout import Layout
from pulse_resources.local.service import Service
from pulse_resources.settings import Settings

INFRASTRUCTURE = ("postgres", "kafka", "minio", "spark")
EVERYTHING = (*INFRASTRUCTURE, "api", "lake", *dagster.SERVICES)

_LOCAL = {
    "postgres": postgres.service,
    "kafka": kafka.service,
    "minio": minio.service,
    "spark": spark.service,
}
_EXTERNAL = {
    "postgres": postgres.external,
    "kafka": kafka.external,
    "minio": minio.external,
    "spark": spark.external,
}


def build(
    layout: Layout, settings: Settings, names: tuple[str, ...], definitions: str = dagster.MODULE
) -> list[Service]:
    """Describe the services with these names; those with an address in the settings are marked external."""
    external_services = provision.external()
    services = [
        _EXTERNAL[name](settings) if name in external_services else _LOCAL[name](layout, settings)
        for name in INFRASTRUCTURE
        if name in names
    ]
    if "api" in names:
        services.append(front_ends.api(settings))
    if "lake" in names:
        services.append(front_ends.lake(settings))
    if set(dagster.SERVICES) & set(names):
        services += dagster.services(layout, settings, definitions)
    return services


def missing_downloads(names: tuple[str, ...]) -> list[Download]:
    """Downloads needed before the services with these names can start.

    Raises:
        UserError: names the missing prerequisites.
    """
    ours = set(names) - provision.external()
    downloads = {"kafka": kafka.DOWNLOAD, "spark": spark.DOWNLOAD}
    if not minio_program.on_path():
        downloads["minio"] = minio_program.DOWNLOAD
    missing = {n: d for n, d in downloads.items() if n in ours and not d.present()}
    prerequisites.check(ours, minio_missing="minio" in missing)
    return list(missing.values())
