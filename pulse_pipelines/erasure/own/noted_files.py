"""Files to remove from own tables once their history is dropped, in the record of the erasure.

They are noted before the commit, since afterwards no metadata names them.
"""

from collections.abc import Collection

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_resources import postgres

REMOVING = "own_removing"
"""Key in the record: paths by table."""


def note(tenant: Tenant, erasure_id: str, table: str, reached: Collection[str]) -> set[str]:
    """Note a table's files, with those that an interrupted erasure noted; returns all of them."""
    noted = _noted(tenant, erasure_id)
    files = {*reached, *noted.get(table, ())}
    _write(tenant, erasure_id, noted | {table: sorted(files)})
    return files


def forget(tenant: Tenant, erasure_id: str, table: str) -> None:
    """Forget a table's files: they are removed. Paths may have values of partitions in them."""
    noted = _noted(tenant, erasure_id)
    _write(tenant, erasure_id, {name: paths for name, paths in noted.items() if name != table})


def _noted(tenant: Tenant, erasure_id: str) -> dict[str, list[str]]:
    return record.find(tenant, erasure_id).steps.get(REMOVING) or {}


def _write(tenant: Tenant, erasure_id: str, removing: dict[str, list[str]]) -> None:
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        record.done(connection, tenant, erasure_id, REMOVING, removing)
