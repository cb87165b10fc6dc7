"""Teams' rollups: SQL files with a declared grain, and the checks on their queries.

    -- dataset: orders
    -- grain: country
    -- description: Orders and revenue by country.
    SELECT country, count(*) AS orders, sum(amount) AS revenue FROM events GROUP BY country

The body is one query over `events`: the rows of one tenant's dataset on one day. That it reads nothing else
is enforced three times: by an allow-list of its syntax (`check_query`), by running the query as regenerated
from its syntax tree, and by checking the plan that Spark makes of it (`compute`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pt

from pulse_pipelines.curated.query_check import check_query
from pulse_pipelines.curated.rollup import PARTITION_FIELD, Part, Rollup, union
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.domain.roles import ACTOR
from pulse_pipelines.domain.schemas.columns import COLUMN_NAME, METADATA
from pulse_pipelines.domain.tenant import LATEST
from pulse_resources.errors import UserError
from pulse_resources.settings import load_settings

EVENTS = "events"
BUILT_IN = ("daily", "behaviour")
RESERVED_NAMES = (*BUILT_IN, LATEST)
"""Names that no team's rollup can have."""
OURS = frozenset(("day", "part", PARTITION_FIELD, *METADATA))
"""Names of columns that Pulse adds, of the partition field, and of Iceberg's metadata columns."""
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_HEADER = re.compile(r"--\s*(dataset|grain|description):\s*(.*?)\s*$")


@dataclass(frozen=True, eq=False)
class TeamRollup(Rollup):
    dataset: str = ""
    """Slug of the datasets that have it, of all tenants; empty: the file names none."""

    def checked(self, rows: pa.Table, dataset: Dataset) -> pa.Table:
        """The rows of a day, checked against the declared grain and cast to types that every engine has.

        Raises:
            UserError: a column is invalid, a grain is there twice, or there are too many rows.
        """
        _check_columns(rows.schema, self.grain, dataset.column_of(ACTOR))
        most = load_settings().curated.max_rows
        if len(rows) > most:
            raise UserError(
                f"the day has {len(rows):,} rows, the limit is {most:,}", fix="Choose a coarser grain"
            )
        if self.grain:
            distinct = rows.group_by(list(self.grain)).aggregate([([], "count_all")])
            doubled = [row for row in distinct.to_pylist() if row["count_all"] > 1]
            if doubled:
                twice = {name: doubled[0][name] for name in self.grain}
                raise UserError(
                    f"the grain ({', '.join(self.grain)}) does not distinguish rows: {twice} is there twice",
                    fix="Group by the grain, or declare a finer one",
                )
        elif len(rows) > 1:
            raise UserError("without a grain a day may have one row only", fix="Declare the grain")
        return rows.cast(pa.schema([field.with_type(_plain(field)) for field in rows.schema]))


def read(file: Path, existing: Mapping[tuple[str, str], str]) -> TeamRollup:
    """Read the rollup of a file; a broken file's has a `problem`, and no dataset if its name is not usable.

    Args:
        file: it names the rollup: `orders_by_country.sql` is the rollup `by_country` of `orders`.
        existing: files of the rollups read before, by dataset and name.
    """
    text, problem, unread = "", None, None
    try:
        text = file.read_text(errors="replace")
    except OSError as error:  # a folder, say
        unread = f"it cannot be read: {error}"
    header = {match[1]: match[2] for line in text.splitlines() if (match := _HEADER.match(line))}
    slug = header.get("dataset", "")
    name = file.stem.removeprefix(f"{slug}_")
    grain = tuple(part.strip() for part in header.get("grain", "").split(",") if part.strip())
    named, query = _is_name(name) and (slug, name) not in existing, ""
    try:
        _check_header(header, name, grain)
        if earlier := existing.get((slug, name)):
            raise UserError(f"{earlier} is the rollup {name!r} of {slug!r} already", fix="Rename one of them")
        query = checked_query(text)
    except UserError as error:
        problem = f"{error.message}" + (f". {error.fix}" if error.fix else "")
    except Exception as error:  # such as a query nested too deeply: it must not stop other teams' files
        problem = f"{type(error).__name__}: {error}"

    def statement(parts: Sequence[Part]) -> str:
        return union([_of_day(part, query) for part in parts])

    return TeamRollup(
        name=name,
        description=header.get("description", f"The team's rollup in {file.name}."),
        grain=grain,
        text=text,
        statement=statement,
        source=file.name,
        problem=unread or problem,
        dataset=slug if named else "",  # else its asset key would be taken already, or invalid in Dagster
    )


def _of_day(part: Part, query: str) -> str:
    return union(
        [
            f"SELECT {part.number} AS part, DATE '{day}' AS day, result.* FROM "  # noqa: S608 - see below
            f"(WITH {EVENTS} AS ({part.select('*', [day])}) ({query})) AS result"
            for day in part.days
        ]
    )


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and len(name) <= 60 and name not in RESERVED_NAMES


def _check_header(header: Mapping[str, str], name: str, grain: Sequence[str]) -> None:
    for key in ("dataset", "grain"):
        if key not in header:
            raise UserError(
                f"the header has no {key}", fix=f"Begin the file with a line such as -- {key}: ..."
            )
    if not _is_name(name):
        raise UserError(
            f"{name!r} is not a name for a rollup",
            fix=f"Use a-z, 0-9 and single _, and none of {', '.join(RESERVED_NAMES)}",
        )
    for column in grain:
        if not COLUMN_NAME.fullmatch(column) or column.lower() in OURS:
            raise UserError(f"{column!r} cannot be in the grain", fix="Name columns of the query")


def checked_query(text: str) -> str:
    """Check that a query reads nothing but `events`; returns it as regenerated from its syntax tree.

    Raises:
        UserError: it is not one SELECT, or contains something that a rollup may not use.
    """
    return check_query(text, "rollup", only=EVENTS).text


def _check_columns(schema: pa.Schema, grain: Sequence[str], actor: str | None) -> None:
    names = [field.name for field in schema]
    lower = [name.lower() for name in names]
    for name in names:
        if not COLUMN_NAME.fullmatch(name) or name.lower() in OURS:
            raise UserError(f"{name!r} is not a name for a column of a rollup", fix="Give it one with AS")
        if lower.count(name.lower()) > 1:
            raise UserError(f"two columns are called {name!r}")
    if missing := [name for name in grain if name not in names]:
        raise UserError(f"the query has no column {missing[0]!r}, which is in the grain")
    if len(grain) == len(names):
        raise UserError("the query has no measure besides the grain")
    if actor in grain:
        raise UserError(f"{actor!r} is the dataset's actor: no summary keeps a row per person")
    for field in schema:
        _plain(field)


def _plain(field: pa.Field) -> pa.DataType:
    """The type in which a column is stored: integers are longs, decimals stay, other numbers are doubles."""
    kind = field.type
    if pt.is_integer(kind):
        return pa.int64()
    if pt.is_floating(kind):
        return pa.float64()
    if pt.is_decimal(kind):
        return kind
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pt.is_boolean(kind) or pt.is_string(kind) or pt.is_large_string(kind) or pt.is_date(kind):
        return pa.string() if pt.is_large_string(kind) else kind
    raise UserError(f"column {field.name!r} is of type {kind}", fix="Cast it to a number, text, date or time")
