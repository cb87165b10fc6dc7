"""Semantic layer: what the columns of a dataset mean, from its schema and its rollups.

Besides types a schema may contain `title`, `description`, `enum`, and on a property `x-pulse-unit`
("minutes"), `x-pulse-measure` (the property's default aggregation: "sum", "avg", "min", "max", "median";
false: a number that is an identifier), `x-pulse-synonyms` (other words for it; at the root: words for a row).
All of it is optional, and invalid values are ignored. A number whose name ends with a unit has
that one; one whose name ends with `_id` is an identifier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_pipelines import registry
from pulse_pipelines.curated import tables
from pulse_pipelines.curated.rollup import Rollup
from pulse_pipelines.curated.rollups import of_dataset, team_rollups
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.schemas.columns import FieldType, Kind
from pulse_pipelines.domain.tenant import Tenant

MAX_TEXT, MAX_WORD, MAX_WORDS = 500, 60, 40
AGGREGATIONS = ("sum", "avg", "min", "max", "median")
NUMBERS = (Kind.LONG, Kind.DOUBLE)
_NAMED = "km miles meters kg bytes ms seconds minutes hours percent celsius fahrenheit usd eur gbp"
UNITS = {name: name for name in _NAMED.split()} | {
    "pct": "percent",
    "secs": "seconds",
    "mins": "minutes",
    "hrs": "hours",
}
"""Units of numbers by the last word of their names. Not days: `orders_30_days` counts orders."""


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
    """A rollup: what is computed per day, in a table that queries may name."""

    name: str
    table: str
    """The name of its table; empty: no day has been computed yet."""
    description: str
    grain: tuple[str, ...]
    columns: Mapping[str, str]
    """Descriptions by column, with `day`; empty where a team's file gives none."""


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
    return _meanings_of(tenant, registry.list_datasets(tenant))


def find_meaning(tenant: Tenant, slug: str) -> Meaning:
    """The semantic layer of one dataset. Raises NotFound, also for a slug that only another tenant has."""
    return _meanings_of(tenant, [registry.find_dataset(tenant, slug)])[0]


def _meanings_of(tenant: Tenant, datasets: Sequence[Dataset]) -> list[Meaning]:
    team = team_rollups()
    rollups = [(dataset, of_dataset(dataset, team)) for dataset in datasets]
    names = [
        (dataset.slug, rollup.name) for dataset, dataset_rollups in rollups for rollup in dataset_rollups
    ]
    computed = tables.columns(tenant, names)
    return [_of_dataset(tenant, dataset, dataset_rollups, computed) for dataset, dataset_rollups in rollups]


def _of_dataset(
    tenant: Tenant,
    dataset: Dataset,
    rollups: Sequence[Rollup],
    computed: Mapping[tuple[str, str], Sequence[str]],
) -> Meaning:
    """The semantic layer of a dataset, from the schema version that it follows, and its rollups."""
    described = []
    for rollup in rollups:
        columns = computed.get((dataset.slug, rollup.name))
        table = tenant.curated_table(dataset.slug, rollup.name)[1] if columns else ""
        descriptions = {name: _text(rollup.columns.get(name)) for name in columns or rollup.columns}
        described.append(
            RollupMeaning(rollup.name, table, _text(rollup.description), rollup.grain, descriptions)
        )
    return of_schema(
        dataset.slug,
        dataset.schema,
        [(column.field, column.name, column.type) for column in dataset.columns],
        schema_uri=dataset.schema_uri,
        of_entities=dataset.of_entities,
        rollups=tuple(described),
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


def _fields(name: str, kind: FieldType, annotations: Mapping[str, Any]) -> list[Field]:
    if kind.kind is Kind.STRUCT:
        members = _mapping(annotations.get("properties"))
        return [
            field
            for member, inner in kind.fields
            for field in _fields(f"{name}.{member}", inner, _mapping(members.get(member)))
        ]
    measure = annotations.get("x-pulse-measure")
    values = annotations.get("enum")
    listed = values if isinstance(values, list) and kind.kind is Kind.STRING else ()
    return [
        Field(
            name,
            kind.kind.value,
            _text(annotations.get("title")),
            _text(annotations.get("description")),
            _unit(name, kind.kind, annotations),
            _words(annotations.get("x-pulse-synonyms")),
            tuple(value for value in listed if isinstance(value, str)),
            kind.kind in NUMBERS and measure is not False and not (measure is None and _is_id(name)),
            measure if kind.kind in NUMBERS and measure in AGGREGATIONS else None,
        )
    ]


def _unit(name: str, kind: Kind, annotations: Mapping[str, Any]) -> str:
    if "x-pulse-unit" in annotations or kind not in NUMBERS:
        return _text(annotations.get("x-pulse-unit"))[:MAX_WORD]
    before, _, last = name.lower().rpartition("_")
    return UNITS.get(last, "") if before else ""


def _is_id(name: str) -> bool:
    """Whether adding up a number makes no sense, judged by its name alone."""
    last = name.rpartition(".")[2].lower()
    return last == "id" or last.endswith("_id")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """Text on one line, truncated: its author may be anyone who publishes schemas."""
    if not isinstance(value, str):
        return ""
    if not value.isprintable():  # most are, and there may be 100,000 of them
        value = "".join(c if c.isprintable() else " " for c in value)
    return " ".join(value.split())[:MAX_TEXT]


def _words(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = (_text(word) for word in values[:MAX_WORDS])
    return tuple(text for text in texts if 0 < len(text) <= MAX_WORD)
