"""Addresses of a tenant's sources, by name, with credentials: no definition, log, row or run holds one.

They are in Pulse's environment, `PULSE_SOURCE__<TENANT>__<NAME>`, or in the file
`$PULSE_HOME/sources/<tenant>/<name>`, which only Pulse may read. So a tenant can name only its own sources.
"""

import os
from pathlib import Path

from pulse_pipelines.domain.tenant import Tenant
from pulse_resources.errors import NotFound, UserError
from pulse_resources.home import pulse_home


def file(tenant: Tenant, source: str) -> Path:
    """The file that holds a source's address, unless the environment has it."""
    return pulse_home() / "sources" / tenant.slug / source


def url(tenant: Tenant, source: str) -> str:
    """The address of a source: a connection string, or a URL with credentials.

    Raises:
        NotFound: it is not configured.
        UserError: other users may read its file.
    """
    variable = f"PULSE_SOURCE__{tenant.slug.upper()}__{source.upper()}"
    if address := os.environ.get(variable):
        return address
    path = file(tenant, source)
    try:
        mode, address = path.stat().st_mode, path.read_text().strip()
    except OSError:
        raise NotFound(
            "the source has no address",
            fix=f"An operator writes it into $PULSE_HOME/sources/{tenant.slug}/{source}, readable for Pulse "
            f"alone, or into the environment of Pulse: {variable}",
            tenant=tenant.slug,
            source=source,
        ) from None
    if mode & 0o077:
        raise UserError(
            "other users may read the file with the credentials of this source",
            fix=f"chmod 600 $PULSE_HOME/sources/{tenant.slug}/{source}",
        )
    return address
