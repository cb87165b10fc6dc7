"""The columns of a table that exists: what its schema declares, kept as the table has kept it so far.

What a schema declares is derived by the rule of this version of Pulse; a table was made by the rule of its
time. A column that a table keeps as JSON text remains that, and what it has no column for stays in
`_extra`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from pulse_pipelines.domain.columns import JSON, Column, FieldType, Kind
from pulse_pipelines.domain.subschemas import list_of, resolve

TEXT, JSON_TEXT = "text", "JSON text"
"""What a table says of its columns of text. Tables of Pulse 0.1 say nothing: only what a schema declares to
be a string in so many words is text there."""


def fitted(
    columns: Iterable[Column], document: Mapping[str, Any], table_schema: str, *, grow: bool = False
) -> tuple[Column, ...]:
    """The columns as a table holds them.

    Args:
        columns: what the document declares.
        table_schema: of the table, as JSON.
        grow: keep what the table does not have yet, since it is about to get it.
    """
    fields = {field["name"]: field for field in orjson.loads(table_schema)["fields"]}
    found = []
    for column in columns:
        if (field := fields.get(column.name)) is None:
            if grow:
                found.append(column)
            continue
        kind = _fitted(column.type, field["type"], grow)
        if kind.kind is Kind.STRING and field.get("doc") != TEXT:
            plain = field.get("doc") is None and _in_so_many_words(document, column.field)
            kind = kind if plain else JSON
        found.append(replace(column, type=kind, certain=column.certain or kind is JSON))
    return tuple(found)


def _fitted(kind: FieldType, held: Any, grow: bool) -> FieldType:
    if isinstance(held, str):
        return JSON if held == "string" and kind.kind is not Kind.STRING else kind
    if kind.kind is Kind.LIST and kind.item is not None:
        return replace(kind, item=_fitted(kind.item, held["element"], grow))
    if kind.kind is not Kind.STRUCT:
        return kind
    there = {field["name"]: field["type"] for field in held.get("fields", ())}
    members = (
        (name, _fitted(member, there[name], grow) if name in there else member)
        for name, member in kind.fields
    )
    return replace(kind, fields=tuple(each for each in members if grow or each[0] in there))


def _in_so_many_words(document: Mapping[str, Any], field: str) -> bool:
    fragment: Any = document.get("properties", {}).get(field)
    for _ in range(32):
        if not isinstance(fragment, dict):
            return False
        choices = [
            each for each in fragment.get("anyOf") or fragment.get("oneOf") or () if each != {"type": "null"}
        ]
        if isinstance(reference := fragment.get("$ref"), str):
            fragment = resolve(reference, document)
        elif choices:
            fragment = choices[0] if len(choices) == 1 else None
        else:
            declared = fragment.get("type")
            return [each for each in list_of(declared) or [declared] if each != "null"] == ["string"]
    return False
