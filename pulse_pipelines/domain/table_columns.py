"""Columns of existing tables: the declared columns of a schema, fitted to the types that a table has.

Declared columns are derived by the rules of this version of Pulse; a table was made by those of an earlier
one. A column that the table has as JSON text stays JSON text, and a property without a column stays in
`_extra`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from pulse_pipelines.domain.schemas.columns import JSON, Column, FieldType, Kind
from pulse_pipelines.domain.schemas.subschemas import list_of, resolve

TEXT, JSON_TEXT = "text", "JSON text"
"""The `doc` of text columns in a table, before ": " and what the schema says. Tables of Pulse 0.1 have
none: there a column is text only if the schema declares its type to be string literally."""


def fitted(
    columns: Iterable[Column], document: Mapping[str, Any], table_schema: str, *, grow: bool = False
) -> tuple[Column, ...]:
    """The columns with the types that a table has.

    Args:
        columns: the declared columns of the document.
        table_schema: of the table, as JSON.
        grow: include columns and members that the table lacks, to be added to it.
    """
    fields = {field["name"]: field for field in orjson.loads(table_schema)["fields"]}
    columns_of_table = []
    for column in columns:
        if (field := fields.get(column.name)) is None:
            if grow:
                columns_of_table.append(column)
            continue
        kind = _fitted(column.type, field["type"], grow)
        if kind.kind is Kind.STRING and (mark := mark_of(field.get("doc"))) != TEXT:
            plain = mark is None and _in_so_many_words(document, column.field)
            kind = kind if plain else JSON
        columns_of_table.append(replace(column, type=kind, certain=column.certain or kind is JSON))
    return tuple(columns_of_table)


def doc(kind: Kind, description: str, before: str | None = None) -> str | None:
    """The `doc` of a column: for text its storage, then the schema's description.

    Args:
        before: of the column of a table, whose mark stays.
    """
    mark = mark_of(before) if before else {Kind.STRING: TEXT, Kind.JSON: JSON_TEXT}.get(kind)
    return ": ".join(filter(None, (mark, description))) or None


def mark_of(doc: str | None) -> str | None:
    """How a column of text is held, from its `doc`; the `doc` itself, if this does not say it."""
    return next((mark for mark in (TEXT, JSON_TEXT) if doc and f"{doc}: ".startswith(f"{mark}: ")), doc)


def _fitted(kind: FieldType, stored: Any, grow: bool) -> FieldType:
    if isinstance(stored, str):
        return JSON if stored == "string" and kind.kind is not Kind.STRING else kind
    if kind.kind is Kind.LIST and kind.item is not None:
        return replace(kind, item=_fitted(kind.item, stored["element"], grow))
    if kind.kind is not Kind.STRUCT:
        return kind
    existing = {field["name"]: field["type"] for field in stored.get("fields", ())}
    members = (
        (name, _fitted(member, existing[name], grow) if name in existing else member)
        for name, member in kind.fields
    )
    return replace(kind, fields=tuple(member for member in members if grow or member[0] in existing))


def _in_so_many_words(document: Mapping[str, Any], field: str) -> bool:
    fragment: Any = document.get("properties", {}).get(field)
    for _ in range(32):
        if not isinstance(fragment, dict):
            return False
        choices = [
            choice
            for choice in fragment.get("anyOf") or fragment.get("oneOf") or ()
            if choice != {"type": "null"}
        ]
        if isinstance(reference := fragment.get("$ref"), str):
            fragment = resolve(reference, document)
        elif choices:
            fragment = choices[0] if len(choices) == 1 else None
        else:
            declared = fragment.get("type")
            return [name for name in list_of(declared) or [declared] if name != "null"] == ["string"]
    return False
