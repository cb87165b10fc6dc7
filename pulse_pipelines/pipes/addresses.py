"""Addresses of a tenant's sources, with credentials: definitions, logs, rows and runs only have names.

They are in Pulse's environment, `PULSE_SOURCE__<TENANT>__<NAME>`, or in the file
`$PULSE_HOME/sources/<tenant>/<name>`, which only Pulse may read. So a tenant can name only its own sources.
"""

import os
from pathlib import Path

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import NotFound, UserError
from pulse_resources.home import pulse_home
from pulse_resources.settings.setting_names import SOURCE


def folder(tenant: Tenant) -> Path:
    """The folder of the files that hold the addresses of a tenant's sources."""
    return pulse_home() / "sources" / tenant.slug


def file(tenant: Tenant, source: str) -> Path:
    """The file that holds a source's address, unless the environment has it."""
    return folder(tenant) / source


def variable(tenant: Tenant, source: str) -> str:
    """The environment variable that may hold a source's address; it comes before the file."""
    return f"{SOURCE}{tenant.slug.upper()}__{source.upper()}"


def url(tenant: Tenant, source: str) -> str:
    """The address of a source: a connection string, or a URL with credentials.

    Raises:
        NotFound: it is not configured.
        UserError: other users may read its file.
    """
    if address := os.environ.get(variable(tenant, source)):
        return address
    path = file(tenant, source)
    try:
        mode, address = path.stat().st_mode, path.read_text().strip()
    except OSError:
        raise NotFound(
            "the source has no address",
            # Without the name of the command: callers of the HTTP API are shown no fix that has one.
            fix=f"An operator stores it with `source set {tenant.slug} {source}` on the command line, or in "
            f"Pulse's environment: {variable(tenant, source)}",
            tenant=tenant.slug,
            source=source,
        ) from None
    if mode & 0o077:
        raise UserError(
            "other users may read the file with the credentials of this source",
            fix=f"chmod 600 $PULSE_HOME/sources/{tenant.slug}/{source}",
        )
    return address
