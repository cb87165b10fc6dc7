"""What a schema says of its fields is what its table's columns say of themselves. No services."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.schema import Schema

from pulse_pipelines.domain.schemas.columns import MAX_DESCRIPTION, MAX_DESCRIPTIONS, Kind, columns
from pulse_pipelines.domain.schemas.schema import check_document
from pulse_pipelines.domain.table_columns import fitted
from pulse_pipelines.tables.iceberg_schema import evolve, table_schema

CHOICE = {"type": ["string", "integer"]}


def schema(**properties: Any) -> dict[str, Any]:
    return check_document(json.dumps({"type": "object", "properties": properties}))


def docs(table: Schema) -> Mapping[str, str | None]:
    return {field.name: field.doc for field in table.fields}


def of(document: dict[str, Any]) -> Mapping[str, str | None]:
    return docs(table_schema(columns(document)))


def test_a_description_is_the_column_s() -> None:
    described = {"description": "Where it went"}
    descriptions = of(
        schema(
            a={"type": "string", **described},
            b={"type": "number", **described},
            c=CHOICE | described,
            d=CHOICE,
        )
    )
    assert [descriptions[name] for name in "abcd"] == [
        "text: Where it went",
        "Where it went",
        "JSON text: Where it went",
        "JSON text",
    ]


def test_a_description_is_that_of_the_property_at_any_depth() -> None:
    document = check_document(
        json.dumps(
            {
                "$defs": {"money": {"type": "number", "description": "Euros"}},
                "oneOf": [
                    {
                        "type": "object",
                        "properties": {"a": {"$ref": "#/$defs/money"}, "b": {"type": "string"}},
                    },
                    {"type": "object", "properties": {"b": {"type": "string", "description": "Other"}}},
                ],
            }
        )
    )
    descriptions = of(document)
    assert (descriptions["a"], descriptions["b"]) == ("Euros", "text: Other")


@pytest.mark.parametrize(
    "hostile", ["text", "JSON text: text", "text: x", "a\0b\x1b[31m\u202e", " \n ", "x" * 9999]
)
def test_a_description_of_a_tenant_changes_no_column_type(hostile: str) -> None:
    document = schema(a=CHOICE | {"description": hostile}, b={"type": "string", "description": hostile})
    table = table_schema(columns(document))
    kinds = {
        column.name: column.type.kind
        for column in fitted(columns(document), document, table.model_dump_json())
    }
    assert kinds == {"a": Kind.JSON, "b": Kind.STRING}
    for doc in (docs(table)[name] or "" for name in "ab"):
        assert doc.isprintable()
        assert len(doc) <= len("JSON text: ") + MAX_DESCRIPTION


def test_all_descriptions_together_are_bounded() -> None:
    many = {f"p{n}": {"type": "number", "description": "x" * 290} for n in range(1_000)}
    assert (
        sum(len(doc or "") for name, doc in of(schema(**many)).items() if name[0] == "p") <= MAX_DESCRIPTIONS
    )


def test_a_newer_schema_version_replaces_the_column_descriptions() -> None:
    old = schema(
        a={"type": "string"}, b=CHOICE, c={"type": "integer", "description": "Old"}, d={"type": "number"}
    )
    new = schema(
        a={"type": "string", "description": "A"},
        b=CHOICE | {"description": "B"},
        c={"type": "number", "description": "C"},
        d={"type": "number", "description": "D"},
        e={"type": "string", "description": "E"},
    )
    table = table_schema(columns(old))
    declared = fitted(columns(new), new, table.model_dump_json(), grow=True)
    descriptions = docs(evolve(table, declared, 100).schema)
    assert [descriptions[name] for name in "abcde"] == ["text: A", "JSON text: B", "C", "D", "text: E"]


def test_a_table_without_docs_keeps_its_types() -> None:
    """Of Pulse 0.1: its text columns say nothing, and what is text follows from the schema."""
    document = schema(a={"type": "string", "description": "A"}, b=CHOICE | {"description": "B"})
    bare = json.loads(table_schema(columns(document)).model_dump_json())
    for field in bare["fields"]:
        field.pop("doc", None)
    table = Schema.model_validate(bare)
    declared = fitted(columns(document), document, json.dumps(bare), grow=True)
    assert [column.type.kind for column in declared] == [Kind.STRING, Kind.JSON]
    again = evolve(table, declared, 100).schema
    assert fitted(columns(document), document, again.model_dump_json()) == declared


def test_a_column_of_json_text_stays_json_text() -> None:
    """The table holds JSON text where this version of Pulse would hold text."""
    document = schema(a={"type": "string", "description": "A"})
    text = table_schema(columns(document)).model_dump_json().replace("text: A", "JSON text")
    declared = fitted(columns(document), document, text, grow=True)
    again = evolve(Schema.model_validate_json(text), declared, 100).schema
    assert again.find_field("a").doc == "JSON text: A"
