"""Semantic layer: what the columns of a dataset mean, from its schema and its rollups.

Besides types a schema may contain `title`, `description`, `enum`, and on a property `x-pulse-unit`
("minutes"), `x-pulse-measure` (the property's default aggregation: "sum", "avg", "min", "max", "median";
false: a number that is an identifier), `x-pulse-synonyms` (other words for it; at the root: words for a row).
All of it is optional, and invalid values are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.curated.rollups import of_dataset, team_rollups
from pulse_pipelines.curated.sqlfile import TeamRollup
from pulse_pipelines.domain.columns import FieldType, Kind
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.tenant import Tenant

MAX_TEXT, MAX_WORD, MAX_WORDS = 500, 60, 40
AGGREGATIONS = ("sum", "avg", "min", "max", "median")
NUMBERS = (Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True)
class Field:
    """A column, or a member of a struct, that questions can refer to."""

    name: str
    """Name of the column; a member is prefixed by its struct: address.zip."""
    kind: str
    title: str = ""
    description: str = ""
    unit: str = ""
    synonyms: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    """All possible values, if the schema lists them."""
    measure: bool = False
    """Whether it is a number that can be summed or averaged."""
    aggregation: str | None = None
    """The default aggregation."""

    @property
    def sql(self) -> str:
        return ".".join(f'"{part}"' for part in self.name.split("."))


@dataclass(frozen=True)
class RollupMeaning:
    """A rollup: what is computed per day."""

    name: str
    description: str
    grain: tuple[str, ...]
    columns: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Meaning:
    """The semantic layer of a dataset; compared by identity."""

    dataset: str
    title: str
    description: str
    synonyms: tuple[str, ...]
    """Words for a row of it."""
    of_entities: bool
    schema_uri: str
    fields: tuple[Field, ...]
    rollups: tuple[RollupMeaning, ...] = ()

    @property
    def measures(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.measure)

    @property
    def dimensions(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if not field.measure)

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


def of_tenant(tenant: Tenant) -> list[Meaning]:
    """The semantic layers of all datasets of a tenant, by slug."""
    team = team_rollups()
    return [of(dataset, team) for dataset in registry.list_datasets(tenant)]


def of_one(tenant: Tenant, slug: str) -> Meaning:
    """The semantic layer of one dataset. Raises NotFound, also for a slug that only another tenant has."""
    return of(registry.find_dataset(tenant, slug), team_rollups())


def of(dataset: Dataset, team: Sequence[TeamRollup] = ()) -> Meaning:
    """The semantic layer of a dataset, from the schema version that it follows."""
    rollups = tuple(
        RollupMeaning(each.name, each.description, each.grain, dict(each.columns))
        for each in of_dataset(dataset, team)
    )
    columns = [(column.field, column.name, column.type) for column in dataset.columns]
    return of_schema(
        dataset.slug,
        dataset.schema,
        columns,
        schema_uri=dataset.schema_uri,
        of_entities=dataset.of_entities,
        rollups=rollups,
    )


def of_schema(
    slug: str,
    document: Mapping[str, Any],
    columns: Sequence[tuple[str, str, FieldType]],
    *,
    schema_uri: str = "",
    of_entities: bool = False,
    rollups: tuple[RollupMeaning, ...] = (),
) -> Meaning:
    """The semantic layer of a dataset, from a schema.

    Args:
        columns: property, column and type of each declared property.
    """
    properties = _mapping(document.get("properties"))
    fields: list[Field] = []
    for property_name, name, kind in columns:
        fields += _fields(name, kind, _mapping(properties.get(property_name)))
    return Meaning(
        slug,
        _text(document.get("title")),
        _text(document.get("description")),
        _words(document.get("x-pulse-synonyms")),
        of_entities,
        schema_uri,
        tuple(fields),
        rollups,
    )


def _fields(name: str, kind: FieldType, said: Mapping[str, Any]) -> list[Field]:
    if kind.kind is Kind.STRUCT:
        members = _mapping(said.get("properties"))
        return [
            field
            for member, inner in kind.fields
            for field in _fields(f"{name}.{member}", inner, _mapping(members.get(member)))
        ]
    measure = said.get("x-pulse-measure")
    values = said.get("enum")
    listed = values if isinstance(values, list) and kind.kind is Kind.STRING else ()
    return [
        Field(
            name,
            kind.kind.value,
            _text(said.get("title")),
            _text(said.get("description")),
            _text(said.get("x-pulse-unit"))[:MAX_WORD],
            _words(said.get("x-pulse-synonyms")),
            tuple(value for value in listed if isinstance(value, str)),
            kind.kind in NUMBERS and measure is not False,
            measure if kind.kind in NUMBERS and measure in AGGREGATIONS else None,
        )
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Text on one line, truncated: its author may be anyone who publishes schemas."""
    if not isinstance(value, str):
        return ""
    return " ".join("".join(c if c.isprintable() else " " for c in value).split())[:MAX_TEXT]


def _words(value: Any) -> tuple[str, ...]:
    given = value if isinstance(value, list) else [value]
    found = (_text(each) for each in given[:MAX_WORDS])
    return tuple(each for each in found if 0 < len(each) <= MAX_WORD)
