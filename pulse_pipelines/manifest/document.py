"""The document of a manifest: a tenant with its limits, schemas, datasets, keys and pipes."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import orjson
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pulse_pipelines.domain import json_values
from pulse_pipelines.domain.dataset import DatasetKind, OnInvalid
from pulse_pipelines.domain.event import nesting
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.not_json import clearer
from pulse_pipelines.domain.pipes import Definition, definition
from pulse_pipelines.domain.quota import MOST, UNLIMITED
from pulse_pipelines.domain.schemas import shorthand
from pulse_pipelines.domain.schemas.exact_numbers import check_numbers
from pulse_resources.errors import UserError, some_of

MAX_DEPTH = 100
"""Maximum nesting of a manifest: a schema in place may have its own levels."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _no_flag(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("must be a number")
    return value


Count = Annotated[int, BeforeValidator(_no_flag), Field(ge=UNLIMITED, le=MOST)]
Rate = Annotated[float, BeforeValidator(_no_flag), Field(ge=UNLIMITED, le=MOST)]


class LimitsPart(_Part):
    """Limits of the tenant. One that is left out is not changed; 0 means the installation's default."""

    max_datasets: Count | None = None
    max_records_per_month: Count | None = None
    requests_per_second: Rate | None = None
    events_per_second: Rate | None = None
    max_entity_datasets: Count | None = None
    max_lake_tables: Count | None = None
    max_lake_bytes: Count | None = None


class DatasetPart(_Part):
    schema_name: str = Field(alias="schema")
    """Name of a schema of the manifest, of which the dataset follows the last version, or an address."""
    name: str | None = None
    on_invalid: OnInvalid = OnInvalid.REFUSE
    kind: DatasetKind = DatasetKind.EVENTS


class KeyPart(_Part):
    scopes: frozenset[KeyScope] = Field(min_length=1)


class _Document(_Part):
    tenant: str
    name: str | None = None
    limits: LimitsPart = LimitsPart()
    schemas: dict[str, Any] = {}
    datasets: dict[str, DatasetPart] = {}
    keys: dict[str, KeyPart] = {}
    pipes: list[Any] = []


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest."""

    tenant: str
    name: str | None
    limits: LimitsPart
    schemas: Mapping[str, tuple[str, ...]]
    """By name, the JSON Schema of each version, the oldest first."""
    datasets: Mapping[str, DatasetPart]
    keys: Mapping[str, KeyPart]
    pipes: tuple[Definition, ...]


def parse(content: bytes, read: Callable[[str], bytes]) -> Manifest:
    """Parse a manifest in YAML or JSON.

    Args:
        read: reads a file that the manifest names, by its path there. Raises UserError.

    Raises:
        UserError: the manifest, or a file that it names, is not valid; the error names the place.
    """
    document = load(content, "the manifest")
    if not isinstance(document, dict):
        raise UserError("the manifest is not a mapping", fix="It begins with: tenant: <slug>")
    try:
        parts = _Document.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the manifest"
        more = f"; and {error.error_count() - 1:,} more" if error.error_count() > 1 else ""
        raise UserError(f"{place}: {first['msg']}{more}") from None
    pipes = tuple(_pipe(number, entry, read) for number, entry in enumerate(parts.pipes, start=1))
    repeated = [name for name, count in Counter(pipe.pipe for pipe in pipes).items() if count > 1]
    if repeated:
        raise UserError(f"pipes: {some_of(repeated)}: a pipe is defined once")
    return Manifest(
        tenant=parts.tenant,
        name=parts.name,
        limits=parts.limits,
        schemas={name: _versions(name, entry, read) for name, entry in parts.schemas.items()},
        datasets=parts.datasets,
        keys=parts.keys,
        pipes=pipes,
    )


class _Loader(yaml.CSafeLoader):  # type: ignore[misc] # yaml has no types
    """Refuses repeated members, which hide a mistake, and values that versions of YAML do not take alike.

    Says where a value is that cannot be read.
    """

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise _problem(str(clearer(b"", error)), node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if key.tag == f"{_TAG}merge":
                raise _problem("<< is not the same in all versions of YAML: write its members in place", key)
            if name in names:
                raise _problem(f"{name!r} is there twice", key)
            names.add(name)
        return super().construct_mapping(node, deep)


_TAG = "tag:yaml.org,2002:"
_ALIKE = {
    "bool": re.compile("true|false", re.IGNORECASE),
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+"),
    "float": re.compile(r"[^_:]+"),
    "str": re.compile(r"(?![-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|0o[0-7]+$).*", re.DOTALL),
}
"""Values without quotes that are the same in YAML 1.1, which this loader reads, and 1.2, by type."""


def _construct_alike(loader: _Loader, node: Any) -> Any:
    kind = node.tag.removeprefix(_TAG)
    if not node.style and _ALIKE[kind].fullmatch(node.value) is None:
        text = f"{node.value} is not the same in all versions of YAML: put a text into quotes"
        raise _problem(text, node)
    if kind != "float":
        return yaml.CSafeLoader.yaml_constructors[node.tag](loader, node)
    number: float = loader.construct_yaml_float(node)
    if not math.isfinite(number):  # it would become a null
        raise _problem(f"{node.value} is not a number of JSON", node)
    return json_values.rounded(node.value)


for _kind in _ALIKE:
    _Loader.add_constructor(_TAG + _kind, _construct_alike)
for _kind in ("binary", "omap", "pairs", "set"):  # neither YAML 1.2 nor JSON has them
    _Loader.add_constructor(_TAG + _kind, _Loader.construct_undefined)
_Loader.add_constructor(f"{_TAG}timestamp", _Loader.construct_scalar)  # as YAML 1.2 and JSON have it: a text


def _check_events(content: bytes) -> None:
    """Refuse aliases, which can become gigabytes, and depths that a recursive loader does not survive."""
    depth = 0
    for event in yaml.parse(content, yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _problem("an alias; write its value in place", event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _problem(f"more than {MAX_DEPTH} levels of mappings and lists", event)


def _problem(text: str, at: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=at.start_mark)


def load(content: bytes, noun: str) -> Any:
    """The document of a file in YAML or JSON.

    Raises:
        UserError: it is neither, has a member twice, an alias, or more than `MAX_DEPTH` levels.
    """
    if content.lstrip()[:1] == b"{" and _is_json(content):  # YAML lacks its escapes of surrogate pairs
        return json.loads(content, object_pairs_hook=partial(_members, noun), parse_float=json_values.rounded)
    try:
        _check_events(content)
        return yaml.load(content, _Loader)  # noqa: S506 - a safe one
    except ValueError as error:
        raise UserError(f"{noun} is neither YAML nor JSON: {clearer(content, error)}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{noun} is neither YAML nor JSON: {error}") from None


def _is_json(content: bytes) -> bool:
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return nesting(content) <= MAX_DEPTH


def _members(noun: str, members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises UserError: it has a member twice."""
    if repeated := [name for name, count in Counter(name for name, _ in members).items() if count > 1]:
        raise UserError(f"{noun}: {repeated[0]!r} is there twice")
    return dict(members)


def _versions(name: str, entry: Any, read: Callable[[str], bytes]) -> tuple[str, ...]:
    """The versions of a schema: a document or a path, or a list of these."""
    entries = entry if isinstance(entry, list) else [entry]
    if not entries:
        raise UserError(f"schemas.{name}: it has no version")
    return tuple(_schema(f"schemas.{name}", item, read) for item in entries)


def _schema(place: str, entry: Any, read: Callable[[str], bytes]) -> str:
    try:
        if isinstance(entry, str):
            return shorthand.write_out(read(entry))
        if isinstance(entry, dict):
            check_numbers(entry)
            return shorthand.write_out(orjson.dumps(entry, default=float))
    except TypeError as error:
        raise UserError(f"{place}: the schema is not JSON: {error}") from None
    except UserError as error:
        raise UserError(f"{place}: {error.message}", fix=error.fix, **error.where) from None
    raise UserError(f"{place}: a schema is a path, a document, or a list of these")


def _pipe(number: int, entry: Any, read: Callable[[str], bytes]) -> Definition:
    document = load(read(entry), f"pipes: {entry}") if isinstance(entry, str) else entry
    if not isinstance(document, dict):
        raise UserError(f"pipes: number {number} is neither a path nor a definition")
    return definition(document)
