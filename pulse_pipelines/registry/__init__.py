"""The registry: tenants, their keys and quotas, their published schemas and their datasets.

Everything that belongs to a tenant is read and written in its own RLS session.
"""

from pulse_pipelines.registry import (
    event_state_build,
    event_states,
    index_build,
    indexes,
    keys,
    quotas,
    syncs,
)
from pulse_pipelines.registry.current_tables import (
    CurrentLog,
    CurrentTable,
    NamedTable,
    current_log,
    current_table,
    named_tables,
)
from pulse_pipelines.registry.datasets import (
    DeletedDataset,
    create_dataset,
    delete_dataset,
    find_dataset,
    list_datasets,
)
from pulse_pipelines.registry.evolve import FilesToRewrite, carry_out, move_dataset
from pulse_pipelines.registry.families import Family, Member, family_owners, fingerprint, list_families
from pulse_pipelines.registry.schemas import (
    PublishedSchema,
    checked_schema,
    find_schema,
    list_schemas,
    publish_schema,
)
from pulse_pipelines.registry.tenants import create_tenant, find_tenant, list_tenants

__all__ = [
    "CurrentLog",
    "CurrentTable",
    "DeletedDataset",
    "Family",
    "FilesToRewrite",
    "Member",
    "NamedTable",
    "PublishedSchema",
    "carry_out",
    "checked_schema",
    "create_dataset",
    "create_tenant",
    "current_log",
    "current_table",
    "delete_dataset",
    "event_state_build",
    "event_states",
    "family_owners",
    "find_dataset",
    "find_schema",
    "find_tenant",
    "fingerprint",
    "index_build",
    "indexes",
    "keys",
    "list_datasets",
    "list_families",
    "list_schemas",
    "list_tenants",
    "move_dataset",
    "named_tables",
    "publish_schema",
    "quotas",
    "syncs",
]
