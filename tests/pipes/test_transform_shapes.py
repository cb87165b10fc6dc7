"""Which transforms can be computed by what changes lead to, by which indexes, and why others cannot."""

import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from pulse_pipelines.curated.query_check import check_query
from pulse_pipelines.domain.dataset import Dataset, DatasetKind
from pulse_pipelines.domain.schemas.columns import columns
from pulse_pipelines.pipes.transforms import columns as transform_columns
from pulse_pipelines.pipes.transforms.shape import Shape, Whole, shape_of
from pulse_pipelines.tables.iceberg_schema import table_schema

COLUMNS = {
    "name": {"type": "string"},
    "airline": {"type": "string"},
    "seats": {"type": "integer"},
    "price": {"type": "number"},
    "at": {"type": "string", "format": "date-time"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "address": {"type": "object", "properties": {"zip": {"type": "string"}, "id": {"type": "string"}}},
}


def dataset(slug: str) -> Dataset:
    document = {"type": "object", "properties": COLUMNS | {f"of_{slug}": {"type": "string"}}}
    table = table_schema(columns(document), DatasetKind.ENTITIES).model_dump_json()
    about = (slug, slug, f"pulse://t/{slug}/1", json.dumps(document), table, "dead_letter", datetime.now(UTC))
    return Dataset(uuid4(), uuid4(), *about, 7, DatasetKind.ENTITIES)


DATASETS = {slug: dataset(slug) for slug in ("planes", "airlines", "countries")}


def shape(query: str) -> Shape:
    return shape_of(check_query(query, "transform"), DATASETS)


@pytest.mark.parametrize(
    ("query", "indexes"),
    [
        ("SELECT * FROM planes", []),
        ("SELECT ID AS id, upper(name) AS n FROM planes p WHERE seats > 3 AND name LIKE 'a%'", []),
        ("SELECT p.*, a.name AS n FROM planes p JOIN airlines a ON a.id = p.airline", ["planes by airline"]),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.id = a.id", []),
        (
            "SELECT p.id FROM planes p "
            "LEFT JOIN airlines a ON p.seats > 3 AND (upper(a.name) = 'X' AND P.Name = A.NAME)",
            ["planes by name", "airlines by name"],
        ),
        (
            "SELECT p.id FROM planes p JOIN airlines a ON cast(p.seats AS string) = a.id",
            ["planes by concat(seats, '')"],
        ),
        ("SELECT p.id FROM planes p JOIN airlines a ON string(p.name) = a.id", ["planes by name"]),
        (
            "SELECT p.id FROM planes p "
            "JOIN airlines a ON 'a-' || coalesce(p.airline, p.name) = concat(a.id, '')",
            ["planes by concat('a-', coalesce(airline, name))", "airlines by concat(_id, '')"],
        ),
        (
            "SELECT p.id FROM planes p JOIN airlines a ON of_planes = of_airlines "
            "LEFT JOIN countries c ON c.id = a.address.zip AND c.name = p.name",
            ["planes by of_planes", "airlines by of_airlines", "airlines by address.zip"],
        ),
        ("SELECT p.id FROM planes p JOIN planes q ON q.id = p.name", ["planes by name"]),
    ],
)  # fmt: skip
def test_a_query_needs_these_indexes(query: str, indexes: list[str]) -> None:
    shaped = shape(query)
    assert sorted(f"{slug} by {text}" for slug, text in shaped.indexes) == sorted(indexes)
    assert [hop.on.alias for hop in shaped.hops] == list(shaped.slugs)[1:]
    assert shaped.text.count("_0") == 1
    assert not any(f"FROM {slug}" in shaped.text or f"JOIN {slug}" in shaped.text for slug in DATASETS)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id, count(*) AS n FROM planes GROUP BY id", "GROUP BY"),
        ("SELECT DISTINCT id FROM planes", "DISTINCT"),
        ("SELECT id FROM planes LIMIT 3", "LIMIT"),
        ("SELECT id FROM planes ORDER BY id", "ORDER"),
        ("SELECT id FROM planes HAVING max(seats) > 1", "HAVING"),
        ("WITH p AS (SELECT * FROM planes) SELECT id FROM p", "WITH"),
        ("SELECT id FROM planes LATERAL VIEW explode(tags) t AS tag", "LATERAL"),
        ("SELECT id, row_number() OVER (ORDER BY id) AS n FROM planes", "a window function"),
        ("SELECT id FROM planes QUALIFY row_number() OVER (ORDER BY id) = 1", "a window function|within it"),
        ("SELECT id FROM planes UNION ALL SELECT id FROM airlines", "combines queries"),
        ("SELECT id FROM (SELECT id FROM planes)", "a query within it"),
        ("SELECT id FROM planes WHERE name IN (SELECT id FROM airlines)", "a query within it"),
        ("SELECT id FROM planes p WHERE EXISTS (SELECT 1 FROM airlines a WHERE a.id = p.name)", "within it"),
        ("SELECT id, (SELECT max(seats) FROM airlines) AS n FROM planes", "a query within it"),
        ("SELECT name AS id FROM planes", "its id is not that of planes"),
        ("SELECT max(id) AS id FROM planes", "its id is not that of planes"),
        ("SELECT address.id FROM planes", "its id is not that of planes"),
        ("SELECT a.id FROM planes p JOIN airlines a ON p.airline = a.id", "its id is not that of p"),
        ("SELECT a.* FROM planes p JOIN airlines a ON p.airline = a.id", "its id is not that of p"),
        ("SELECT * EXCEPT (name) FROM planes", "its id is not that of planes"),
        ("SELECT p.id FROM planes p, airlines a WHERE p.airline = a.id", "equality of two columns"),
        ("SELECT p.id FROM planes p CROSS JOIN airlines a", "equality of two columns"),
        ("SELECT p.id FROM planes p RIGHT JOIN airlines a ON p.airline = a.id", "neither inner nor left"),
        ("SELECT p.id FROM planes p FULL JOIN airlines a ON p.airline = a.id", "neither inner nor left"),
        ("SELECT p.id FROM planes p LEFT SEMI JOIN airlines a ON p.airline = a.id", "neither inner nor left"),
        ("SELECT p.id FROM planes p LEFT ANTI JOIN airlines a ON p.airline = a.id", "neither inner nor left"),
        ("SELECT id FROM planes JOIN airlines USING (id)", "its id|equality of two columns"),
        ("SELECT p.id FROM planes p NATURAL JOIN airlines a", "equality of two columns"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.seats > a.seats", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.airline <=> a.id", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.airline = a.id OR p.name = a.id", "an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON NOT (p.airline = a.id)", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.seats = a.name", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.price = a.price", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.at = a.at", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.tags[0] = a.id", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON lower(p.name) = lower(a.name)", "an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON concat(p.name, a.name) = a.id", "an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON a.id = 'AA'", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.name = p.airline", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON name = a.id", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON a.id = c.name JOIN countries c ON c.id = p.name",
         "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines a ON p.name || '\\\\' = a.id", "that an index knows"),
        ("SELECT p.id FROM planes p JOIN airlines p ON p.name = p.id", "one name"),
        ("SELECT p.id FROM planes p JOIN (airlines a JOIN countries c ON a.id = c.id) ON p.name = a.id",
         "something else|within it"),
    ],
)  # fmt: skip
def test_a_query_without_a_shape_is_computed_whole_with_a_reason(query: str, why: str) -> None:
    with pytest.raises(Whole, match=why):
        shape(query)


def test_a_double_is_written_in_its_shortest_form() -> None:
    """Java 17 writes 1e23 as 9.999999999999999E22: the same double, and another number."""
    text = '{"a":9.999999999999999E22,"b":[0.1,-0.0,1.0E-5],"c":9223372036854775807,"d":"1E5 \\u00e9"}'
    assert transform_columns.shortest(text) == (
        '{"a":1e+23,"b":[0.1,-0.0,0.00001],"c":9223372036854775807,"d":"1E5 \u00e9"}'
    )
    assert transform_columns.shortest('{"a":1.10,"b":"x"}') == '{"a":1.10,"b":"x"}', "nothing to write again"
