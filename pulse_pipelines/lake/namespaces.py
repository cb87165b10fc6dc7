"""A tenant's own namespaces: create, describe, drop."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.lake import names
from pulse_pipelines.lake.catalog import EXISTS, PROPERTIES, ROLE
from pulse_pipelines.lake.errors import (
    Malformed,
    NamespaceNotEmpty,
    NameTaken,
    no_namespace,
    only_pulse,
)
from pulse_pipelines.lake.names import EVENTS, Levels, written
from pulse_pipelines.lake.requests import Once
from pulse_resources import iceberg, postgres

MOST = 1_000
"""Most namespaces per tenant."""
MOST_PROPERTIES = 200
LONGEST_VALUE = 1_000
"""Longest value of a property, in characters."""
INSERT = """
INSERT INTO iceberg_catalog.iceberg_namespace_properties
    (catalog_name, namespace, property_key, property_value)
VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
SET = """
INSERT INTO iceberg_catalog.iceberg_namespace_properties
    (catalog_name, namespace, property_key, property_value)
VALUES (%s, %s, %s, %s)
ON CONFLICT (catalog_name, namespace, property_key) DO UPDATE SET property_value = excluded.property_value
"""
REMOVE = """
DELETE FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND namespace = %s AND property_key = ANY(%s)
"""
# Held until commit by writers that enter a table; a drop waits for them, and then sees the table.
HOLD = """
SELECT 1 FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND namespace = %s AND property_key = 'exists' FOR SHARE
"""
DROP = """
DELETE FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND namespace = %s AND property_key = 'exists'
"""
DROP_ALL = """
DELETE FROM iceberg_catalog.iceberg_namespace_properties WHERE catalog_name = %s AND namespace = %s
"""
INSIDE = """
SELECT 1 FROM iceberg_catalog.iceberg_tables WHERE catalog_name = %(catalog)s AND table_namespace = %(name)s
UNION ALL
SELECT 1 FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %(catalog)s AND starts_with(namespace, %(name)s || '.')
LIMIT 1
"""
COUNT = """
SELECT count(*) FROM iceberg_catalog.iceberg_namespace_properties
WHERE catalog_name = %s AND property_key = 'exists' AND starts_with(namespace, %s)
"""


def place_of(tenant: Tenant, namespace: Levels) -> str:
    """The stored name of a namespace in which the tenant may write.

    Raises:
        ReadOnly: only Pulse writes there.
        NoSuchNamespace: no namespace of the tenant can have this name.
    """
    if namespace == EVENTS:
        raise only_pulse()
    place = names.encoded_namespace(tenant, namespace)
    if place is None:
        raise no_namespace(namespace)
    return place


def hold(connection: postgres.Connection, namespace: Levels, place: str) -> None:
    """Keep a namespace from being dropped until the transaction ends. Raises NoSuchNamespace."""
    if connection.execute(HOLD, [iceberg.CATALOG, place]).fetchone() is None:
        raise no_namespace(namespace)


def create(tenant: Tenant, namespace: Levels, properties: Mapping[str, str], once: Once) -> None:
    """Create a namespace.

    Raises:
        NameTaken: the name is in use.
        NoSuchNamespace: the parent namespace does not exist.
        Malformed: the name or a property is invalid, or the tenant has too many namespaces.
    """
    once.check(tenant)
    conflict = NameTaken(f"Namespace already exists: {written(namespace)[:300]}")
    if namespace == EVENTS:
        raise conflict
    place = names.encoded_namespace(tenant, namespace)
    if place is None:
        raise Malformed(
            "a namespace cannot have this name",
            fix="Use letters and digits; events, and what would be in it, is Pulse's",
        )
    _check(properties)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        if len(namespace) > 1:
            hold(connection, namespace[:-1], place_of(tenant, namespace[:-1]))
        root = names.tenant_root(tenant)
        ((count,),) = connection.execute(COUNT, [iceberg.CATALOG, root]).fetchall()
        if count >= MOST:
            raise Malformed(f"a tenant may have {MOST} namespaces", fix="Drop one first")
        if not connection.execute(INSERT, [iceberg.CATALOG, place, EXISTS, "true"]).rowcount:
            raise conflict
        _set(connection, place, properties)
        once.record(connection)


def drop(tenant: Tenant, namespace: Levels, once: Once) -> None:
    """Drop an empty namespace.

    Raises:
        ReadOnly, NoSuchNamespace: as `place_of`.
        NamespaceNotEmpty: it contains a table, a view or a namespace.
    """
    place = place_of(tenant, namespace)
    once.check(tenant)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        if not connection.execute(DROP, [iceberg.CATALOG, place]).rowcount:
            raise no_namespace(namespace)
        if connection.execute(INSIDE, {"catalog": iceberg.CATALOG, "name": place}).fetchone():
            raise NamespaceNotEmpty(f"Namespace is not empty: {written(namespace)[:300]}")
        connection.execute(DROP_ALL, [iceberg.CATALOG, place])
        once.record(connection)


@dataclass(frozen=True)
class Changed:
    """Result of an update of properties, by property name."""

    updated: Collection[str]
    removed: Collection[str]
    missing: Collection[str]


def update(
    tenant: Tenant, namespace: Levels, updates: Mapping[str, str], removals: Collection[str], once: Once
) -> Changed:
    """Set properties of a namespace, and remove others.

    Raises:
        ReadOnly, NoSuchNamespace: as `place_of`.
        Malformed: a property is invalid.
    """
    place = place_of(tenant, namespace)
    _check(updates)
    once.check(tenant)
    with postgres.tenant_transaction(ROLE, tenant.tenant_id) as connection:
        hold(connection, namespace, place)
        rows = connection.execute(PROPERTIES, [iceberg.CATALOG, place]).fetchall()
        existing = {key for key, _ in rows} - {EXISTS}
        removed = [name for name in removals if name in existing]
        connection.execute(REMOVE, [iceberg.CATALOG, place, removed])
        _set(connection, place, updates)
        once.record(connection)
    return Changed(list(updates), removed, [name for name in removals if name not in existing])


def _set(connection: postgres.Connection, place: str, properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        connection.execute(SET, [iceberg.CATALOG, place, name, value])


def _check(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if name == EXISTS or not 0 < len(name) <= names.LONGEST or len(value) > LONGEST_VALUE:
            raise Malformed(
                f"a property has a name of up to {names.LONGEST} characters, other than {EXISTS!r},"
                f" and a value of up to {LONGEST_VALUE}"
            )
    if len(properties) > MOST_PROPERTIES or "\0" in "".join((*properties, *properties.values())):
        raise Malformed(f"a namespace has {MOST_PROPERTIES} properties at most, none with a NUL character")
