"""Presentation of a dataset asset in the Dagster UI: group, owners, kinds, columns and links."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import dagster as dg
import orjson

from pulse_pipelines.defs.datasets.partitions import asset_key, partitions
from pulse_pipelines.domain.table_columns import mark_of
from pulse_pipelines.registry import Family, Member, Outline
from pulse_pipelines.tables.iceberg_schema import PULSE_DOCS
from pulse_resources import iceberg
from pulse_resources.settings import load_settings

GROUP_SIZE = 40
"""Assets that fit in one group; a larger group is split by first letter."""
SHOWN = 50
"""Tenants listed on an asset's page: the web server loads the list with every asset."""


class Presentation(TypedDict):
    """Keyword arguments for `dg.AssetSpec` and `@dg.asset`."""

    key: dg.AssetKey
    description: str
    group_name: str
    owners: list[str]
    tags: dict[str, str]
    kinds: set[str]
    metadata: dict[str, Any]
    partitions_def: dg.MultiPartitionsDefinition


def present(families: Sequence[Family], placed: Mapping[str, str]) -> dict[str, Presentation]:
    """Presentation of some families, by slug.

    Args:
        placed: group of each slug (see `groups`).
    """
    return {family.slug: _present(family, placed[family.slug]) for family in families}


def groups(families: Sequence[Family] | Sequence[Outline]) -> dict[str, str]:
    """Group of each slug, given all families: its tenant's if it has one owner, otherwise the shared one."""
    return groups_of_names({family.slug: family.owner for family in families})


def groups_of_names(owners: Mapping[str, str | None]) -> dict[str, str]:
    """Group of each asset, given the tenants of all assets of a kind by name; None: several tenants."""
    wide = {name: f"tenant_{owner}" if owner else "shared" for name, owner in owners.items()}
    sizes = Counter(wide.values())
    return {
        name: f"{group}_{name[0]}" if sizes[group] > GROUP_SIZE else group for name, group in wide.items()
    }


def _present(family: Family, group: str) -> Presentation:
    slug, members = family.slug, family.members
    tags = {"pulse/zone": "dataset", "pulse/tenants": "one" if len(members) == 1 else "many"}
    if len(members) == 1:
        tags["pulse/tenant"] = members[0].tenant.slug
    return Presentation(
        key=asset_key(slug),
        description=_description(family),
        group_name=group,
        owners=load_settings().dagster.owners,
        tags=tags,
        kinds={"iceberg", "kafka"},
        metadata=_metadata(family),
        partitions_def=partitions(slug, family.first_day),
    )


def _description(family: Family) -> str:
    slug, members = family.slug, family.members
    names = sorted({member.name for member in members if member.name != slug})
    title = f"**{', '.join(names[:5])}**\n\n" if names else ""
    owners = (
        f"of tenant `{members[0].tenant.slug}`"
        if len(members) == 1
        else f"of {len(members)} tenants, a table for each"
    )
    return (
        f"{title}The dataset `{slug}` {owners}: Iceberg, partitioned by day(timestamp). "
        "The job `ingest` lands rows exactly once and reports every day that it touched. "
        "Materialize a partition to rebuild that tenant's day from the raw zone; the rows that were there "
        "come out again.\n\n"
        "The columns below are those of all tenants' schemas; where only some have a column, or another type "
        "for it, its description names them."
    )


def _metadata(family: Family) -> dict[str, Any]:
    settings, slug, members = load_settings(), family.slug, family.members
    alone = members[0] if len(members) == 1 else None
    # Catalog name of the single table, or the pattern of all.
    namespace = alone.tenant.namespace if alone else "pulse_<tenant>"
    api = settings.api.linked_url
    return {
        "dagster/column_schema": column_schema(members),
        "dagster/table_name": f"{iceberg.CATALOG}.{namespace}.{slug}",
        "dagster/uri": alone.location if alone else f"s3://{settings.object_store.bucket}/iceberg",
        "dagster/storage_kind": "iceberg",
        "preview": dg.MetadataValue.url(f"{api}/v1/datasets/{slug}/preview"),
        "api_docs": dg.MetadataValue.url(f"{api}/docs"),
        "tenants": len(members),
        "tables": _tables(members),
    }


def _tables(members: Sequence[Member]) -> dg.TableMetadataValue:
    records = [
        dg.TableRecord(
            {
                "tenant": member.tenant.slug,
                "name": member.name,
                "schema_uri": member.schema_uri,
                "table": f"{member.tenant.namespace}.{member.slug}",
                "location": member.location,
            }
        )
        for member in members[:SHOWN]
    ]
    return dg.MetadataValue.table(records)


def column_schema(members: Sequence[Member]) -> dg.TableSchema:
    """Union of the columns of all members' tables, with their owners where not every member has them."""
    having: dict[tuple[str, str], list[str]] = {}
    about: dict[str, Mapping[str, Any]] = {}
    fields_of: dict[str, list[dict[str, Any]]] = {}
    for member in members:
        if member.table_schema not in fields_of:  # most tenants follow the same schema
            fields_of[member.table_schema] = _fields(member.table_schema)
        for field in fields_of[member.table_schema]:
            having.setdefault((field["name"], _type(field["type"])), []).append(member.tenant.slug)
            about.setdefault(field["name"], field)
    return dg.TableSchema(
        [
            dg.TableColumn(
                name,
                kind,
                description=_column_description(about[name].get("doc"), tenants, len(members)),
                constraints=dg.TableColumnConstraints(nullable=not about[name]["required"]),
            )
            for (name, kind), tenants in having.items()
        ]
    )


def _fields(table_schema: str) -> list[dict[str, Any]]:
    """Columns of a schema; none if it is damaged, which a check reports: the asset must still be shown."""
    try:
        fields: list[dict[str, Any]] = orjson.loads(table_schema)["fields"]
        for field in fields:  # fields that are read below
            _ = field["name"], field["required"], _type(field["type"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return []
    return fields


def _column_description(doc: str | None, tenants: Sequence[str], of: int) -> str:
    if (doc := mark_of(doc)) not in PULSE_DOCS:  # a tenant's words are not for the control room
        doc = "A property of the events' data, as the schema declares it"
    if len(tenants) == of:
        return doc
    named = ", ".join(tenants[:5]) + (f" and {len(tenants) - 5} more" if len(tenants) > 5 else "")
    return f"{doc}; of {len(tenants)} of {of} tenants: {named}"


def _type(kind: Any) -> str:
    """Format an Iceberg JSON type as SQL engines write it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        members = ", ".join(f"{field['name']}: {_type(field['type'])}" for field in kind["fields"])
        return f"struct<{members}>"
    return f"list<{_type(kind['element'])}>"
