"""What a transform may say, what its result may be, and its place among assets: no services needed."""

from typing import Any

import dagster as dg
import pytest
from pyspark.sql import types as t

from pulse_pipelines.defs.pipes.assets import pipe_assets, pipe_key
from pulse_pipelines.domain.pipes import LONGEST_SQL, Definition, definition
from pulse_pipelines.pipes.transforms import columns
from pulse_pipelines.pipes.transforms.queries import query_of, refuse_cycles
from pulse_resources.errors import Conflict, UserError


def make_definition(transform: Any, dataset: str = "fleet") -> Definition:
    return definition({"pipe": f"to_{dataset}", "transform": transform, "dataset": dataset})


def test_sources_of_a_transform_are_its_tables_once_each() -> None:
    query = query_of(
        make_definition("""
        WITH big AS (SELECT * FROM planes WHERE seats > 9)
        SELECT b.id FROM big b JOIN Airlines a ON a.id = b.airline LEFT JOIN airlines z ON z.id = a.parent
        WHERE b.id IN (SELECT id FROM checked)
        """)
    )
    assert sorted(query.tables) == ["airlines", "checked", "planes"]


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        ("SELECT 1 AS id", "reads 0 datasets"),
        ("SELECT id FROM pulse.planes", "the query reads pulse.planes"),
        ("SELECT id FROM parquet.`s3://pulse/iceberg`", "the query reads"),
        ("SELECT id FROM planes VERSION AS OF 3", "the query reads|cannot be parsed"),
        ("SELECT id FROM range(9)", "the query reads|may not be used"),
        ("SELECT id, rand() AS r FROM planes", "Rand may not be used in a transform"),
        ("SELECT id, current_timestamp() AS at FROM planes", "may not be used in a transform"),
        ("SELECT id, localtimestamp() AS at FROM planes", "Localtimestamp may not be used in a transform"),
        ("SELECT id, uniform(1, 9) AS r FROM planes", "Uniform may not be used in a transform"),
        ("SELECT id, randstr(9) AS r FROM planes", "Randstr may not be used in a transform"),
        ("SELECT id, shuffle(tags) AS r FROM planes", "Shuffle may not be used in a transform"),
        ("SELECT id, java_method('a', 'b') AS x FROM planes", "may not be used"),
        ("SELECT id FROM planes; SELECT id FROM planes", "exactly one statement"),
        ("DROP TABLE planes", "exactly one statement"),
        ("WITH planes AS (SELECT * FROM planes) SELECT id FROM planes", "the query reads planes"),
        ("SELECT id FROM " + " JOIN ".join(f"d{n}" for n in range(17)), "reads 17 datasets"),
        ("SELECT " + "(" * 5_000 + "id" + ")" * 5_000 + " FROM planes", "nested too deeply|cannot be parsed"),
    ],
)
def test_a_transform_that_is_not_a_select_over_datasets_is_refused(transform: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        query_of(make_definition(transform))


@pytest.mark.parametrize("transform", [["SELECT"], 7, "x" * (LONGEST_SQL + 1)])
def test_a_transform_is_a_text_of_limited_length(transform: object) -> None:
    with pytest.raises(UserError, match="transform"):
        make_definition(transform)


def test_a_transform_with_a_table_is_refused() -> None:
    with pytest.raises(UserError, match="a pipe has no transform"):
        definition({"pipe": "p", "transform": "SELECT", "table": "t", "source": "shop", "dataset": "fleet"})


def test_no_dataset_becomes_a_source_of_itself() -> None:
    first, second = make_definition("SELECT id FROM planes", "a"), make_definition("SELECT id FROM a", "b")
    refuse_cycles(second, [first])
    with pytest.raises(Conflict, match="c reads c"):
        refuse_cycles(make_definition("SELECT id FROM c", "c"), [first, second])
    with pytest.raises(Conflict, match="planes reads b reads a reads planes"):
        refuse_cycles(make_definition("SELECT id FROM b", "planes"), [first, second])


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["name"], "no column id"),
        (["id", "_updated"], "begins with _"),
        (["id", "name", "Name"], "two columns"),
    ],
)
def test_a_result_without_an_id_or_with_other_names_is_refused(names: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        columns.check([t.StructField(name, t.StringType()) for name in names])


def test_a_struct_with_two_members_of_one_name_is_refused() -> None:
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.LongType())])
    for kind in (twice, t.ArrayType(t.StructType([t.StructField("b", twice)]))):
        with pytest.raises(UserError, match=r"a struct of the column 'of' .* two members of one name"):
            columns.check([t.StructField("id", t.LongType()), t.StructField("of", kind)])


def test_each_type_has_its_schema_or_is_refused() -> None:
    kinds = {
        "id": t.LongType(),
        "n": t.ShortType(),
        "x": t.FloatType(),
        "d": t.DecimalType(9, 2),
        "at": t.TimestampType(),
        "of": t.ArrayType(t.StructType([t.StructField("b", t.BooleanType())])),
    }
    fields = [t.StructField(name, kind) for name, kind in kinds.items()]
    columns.check(fields)
    properties = columns.schema(fields)["properties"]
    assert {name: schema["type"][0] for name, schema in properties.items()} == {
        "n": "integer",
        "x": "number",
        "d": "string",
        "at": "string",
        "of": "array",
    }
    assert properties["at"]["format"] == "date-time"
    assert properties["of"]["items"]["properties"]["b"] == {"type": ["boolean", "null"]}
    for kind in (t.BinaryType(), t.MapType(t.StringType(), t.StringType()), t.ArrayType(t.DecimalType(9, 2))):
        with pytest.raises(UserError, match="is of the type"):
            columns.schema([t.StructField("m", kind)])


def test_the_asset_of_a_transform_depends_on_its_sources() -> None:
    (assets,) = pipe_assets({"fleet": "acme", "stock": "acme"}, {"fleet": {"planes"}})
    assert assets.asset_deps == {
        pipe_key("fleet"): {dg.AssetKey(["lake", "planes"])},
        pipe_key("stock"): set(),
    }


def test_the_asset_of_a_pipe_is_in_the_group_of_its_tenant_or_the_shared_one() -> None:
    (assets,) = pipe_assets({"fleet": "acme", "stock": None}, {})
    assert assets.group_names_by_key == {pipe_key("fleet"): "tenant_acme", pipe_key("stock"): "shared"}
