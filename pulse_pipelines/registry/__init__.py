"""The registry: tenants, their keys and quotas, their published schemas and their datasets.

Everything that belongs to a tenant is read and written in its own RLS session.

A module is imported when one of its names is first used: a command that lists tenants needs no Iceberg, whose
import takes longer than the command.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulse_pipelines.registry import keys as keys, quotas as quotas
    from pulse_pipelines.registry.datasets import (
        DeletedDataset as DeletedDataset,
        create_dataset as create_dataset,
        delete_dataset as delete_dataset,
        find_dataset as find_dataset,
        list_datasets as list_datasets,
        list_slugs as list_slugs,
    )
    from pulse_pipelines.registry.families import (
        Family as Family,
        Member as Member,
        Outline as Outline,
        existing_slugs as existing_slugs,
        family_owners as family_owners,
        list_families as list_families,
        list_outlines as list_outlines,
        list_owners as list_owners,
        version as version,
    )
    from pulse_pipelines.registry.schemas import (
        PublishedSchema as PublishedSchema,
        checked_schema as checked_schema,
        find_schema as find_schema,
        list_schemas as list_schemas,
        load_schemas as load_schemas,
        publish_schema as publish_schema,
    )
    from pulse_pipelines.registry.table_lookup import (
        CurrentLog as CurrentLog,
        CurrentTable as CurrentTable,
        NamedTable as NamedTable,
        current_locations as current_locations,
        current_log as current_log,
        current_table as current_table,
        named_tables as named_tables,
    )
    from pulse_pipelines.registry.tenants import (
        create_tenant as create_tenant,
        find_tenant as find_tenant,
        list_tenants as list_tenants,
    )

_NAMES = {
    "table_lookup": (
        "CurrentLog",
        "CurrentTable",
        "NamedTable",
        "current_locations",
        "current_log",
        "current_table",
        "named_tables",
    ),
    "datasets": (
        "DeletedDataset",
        "create_dataset",
        "delete_dataset",
        "find_dataset",
        "list_datasets",
        "list_slugs",
    ),
    "families": (
        "Family",
        "Member",
        "Outline",
        "existing_slugs",
        "family_owners",
        "list_families",
        "list_outlines",
        "list_owners",
        "version",
    ),
    "schemas": (
        "ListedSchema",
        "PublishedSchema",
        "checked_schema",
        "find_schema",
        "list_schemas",
        "load_schemas",
        "publish_schema",
    ),
    "tenants": ("create_tenant", "find_tenant", "list_tenants"),
}
"""Names of this package by their module."""
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is used: a module, or a name of one.

    Raises:
        AttributeError: the registry has no such name.
    """
    path = f"{__name__}.{_MODULE_OF.get(name, name)}"
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:  # a module of this package lacks one that it needs
            raise
        raise AttributeError(f"module {__name__} has no attribute {name}") from error
    value = getattr(module, name) if name in _MODULE_OF else module
    globals()[name] = value
    return value


def import_all() -> None:
    """Import every module now, in a process whose forks share what it has imported."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
