"""Child process of a query: confines itself, runs one query, and exits.

It answers two questions, as JSON over a pipe: which tables this SQL names; then, given the tables and a key
for them, the result. Answers are JSON and bytes, never objects: the parent does not trust the child.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from pulse_pipelines.sql import encoders, engine, manifests, values
from pulse_pipelines.sql.confinement import Confinement
from pulse_pipelines.sql.engine import Store, View
from pulse_pipelines.sql.gate import Gate, Query
from pulse_resources.errors import FileGone, PulseError, Transient, UserError, first_line

BATCH_ROWS = 1_024
_FORBIDDEN, _ABSENT, _RANGE = 403, 404, 416
_WRONG_FILES = {_FORBIDDEN: "a file that is not its own", _RANGE: "bytes that its file does not have"}
"""What a table of the tenant's own names, by the object store's answer."""
_SHORTER = "Content-Length from server mismatches"
"""DuckDB's error for a file that ends before the bytes that it requests."""


class WrongQueryError(UserError):
    """A query is wrong, or what it does with a value: no file of its tables is damaged."""


_OF_VALUES = (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)
"""Errors of an expression at a value; of a file they name it."""
_OF_FILE = re.compile(r"(?:reading|read|Parquet) file ")
_NOT_FINITE = re.compile(r"Out of Range Error: (\w+) is out of range!")


KINDS: Mapping[str, type[PulseError]] = {
    "refused": UserError,
    "wrong": WrongQueryError,
    "gone": FileGone,
    "unavailable": Transient,
}
"""Error classes by their names on the wire."""


def serve(
    channel: Connection, confinement: Confinement, gate: Gate, database: duckdb.DuckDBPyConnection
) -> None:
    """Confine this process, and answer two questions."""
    confinement.enter()
    channel.send_bytes(b"{}")
    query = gate_opens(channel, gate)
    if query is not None:
        _answer(channel, lambda: run(database, query, orjson.loads(channel.recv_bytes())))


def gate_opens(channel: Connection, gate: Gate) -> Query | None:
    """Check the query; answers with the names in it and returns it, or answers with why it is refused."""
    sql = orjson.loads(channel.recv_bytes())["sql"]
    checked: list[Query] = []

    def check() -> tuple[dict[str, Any], bytes]:
        query = gate.check(sql)
        checked.append(query)
        return {"tables": sorted(query.tables), "maybe": sorted(query.maybe)}, b""

    _answer(channel, check)
    return checked[0] if checked else None


def run(
    database: duckdb.DuckDBPyConnection, query: Query, job: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Run a query: the number of rows and marks of checked manifests by folder, and the encoded result.

    Raises:
        UserError: the query is wrong, or exceeds a limit on resources or on the result.
        Gone: a file of a table has been deleted, or a key revoked.
        Transient: the object store does not answer.
    """
    limits, store = job["limits"], Store(**job["store"])
    try:
        checked = engine.lock(
            database,
            store,
            [View(**view) for view in job["views"]],
            memory_bytes=limits["memory_bytes"],
            threads=limits["threads"],
            seconds=limits["seconds"],
        )
        head, content = _run(database, query, job)
        return head | {"checked": _limited_marks(checked)}, content
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        raise UserError(
            f"the query needs more than the {limits['memory_bytes'] // 2**20} MiB of memory that it may have",
            fix="Read fewer columns or a shorter time range, or aggregate first",
        ) from error
    except duckdb.IOException as error:
        if getattr(error, "status_code", None) == _ABSENT:
            raise FileGone(f"a file of a table is gone: {first_line(error)[:500]}") from error
        if "InvalidAccessKeyId" in str(error):
            raise FileGone("the tenant revoked the key for a table") from error
        wrong = _WRONG_FILES.get(getattr(error, "status_code", None) or 0)
        if _SHORTER in str(error):
            wrong = _WRONG_FILES[_RANGE]
        if wrong and any("." in view["name"] for view in job["views"]):
            raise UserError(
                f"a table names {wrong}: {first_line(error)[:500]}",
                fix="Your engines wrote the table: roll it back, or create it again",
            ) from error
        raise Transient(f"the object store does not answer: {first_line(error)[:500]}") from error
    except (duckdb.InternalException, duckdb.FatalException) as error:
        raise UserError(
            f"DuckDB fails at this query: {first_line(error)[:500]}",  # below it are addresses of the process
            fix="Write it another way, or with smaller arguments",
        ) from error
    except (duckdb.BinderException, duckdb.CatalogException) as error:  # files have no part in these
        raise WrongQueryError(f"the query fails: {_short(error)}") from error
    except duckdb.Error as error:
        raise _failed(error) from error
    except (pa.ArrowException, ArithmeticError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"the result cannot be written as {job['media_type']}: {first_line(error)[:500]}",
            fix="Make text of the column: CAST(... AS VARCHAR)",
        ) from error


def _failed(error: duckdb.Error) -> UserError:
    """The error of a query that fails at a value, or at what a file holds."""
    message = f"the query fails: {_short(error)}"
    if not isinstance(error, _OF_VALUES) or _OF_FILE.search(message):
        return UserError(message)
    fix = None
    if named := _NOT_FINITE.search(message):
        fix = (
            f"{named[1]} has no value of numbers that are infinite or too large, and SUMMARIZE computes it,"
            " too: leave them out, as by WHERE isfinite(...)"
        )
    elif isinstance(error, duckdb.ConversionException):
        fix = "TRY_CAST gives null for a value that does not fit"
    return WrongQueryError(message, fix=fix)


def _limited_marks(checked: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """As many of the marks, by folder, as an answer has room for."""
    limited, room = {}, manifests.ANSWERED
    for folder, marks in checked.items():
        limited[folder] = marks[:room]
        room -= len(limited[folder])
    return limited


def _run(
    database: duckdb.DuckDBPyConnection, query: Query, job: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """Run the faster form of a query; if it fails, the query as it was written decides what is wrong."""
    faster, explain = query.faster, "EXPLAIN " if query.explain else ""
    if faster is not None:
        with suppress(duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError):
            rename = faster.renamed and not query.explain
            names = engine.column_names(database, query.text) if rename else None
            return _encoded(database, explain + faster.text, job, names)
    return _encoded(database, explain + query.text, job)


def _encoded(
    database: duckdb.DuckDBPyConnection, text: str, job: Mapping[str, Any], names: Sequence[str] | None = None
) -> tuple[dict[str, Any], bytes]:
    limits, media_type, about = job["limits"], job["media_type"], job["about"]
    reader = engine.rows(database, text, BATCH_ROWS, names)
    if twice := engine.duplicates(reader.schema.names):
        raise WrongQueryError(
            f"two columns of the result are called {twice[0]!r}", fix="Give each a name of its own: AS ..."
        )
    result, count = encoders.encoder(media_type, reader.schema, about, values.texts(database)), 0
    for batch in reader:
        count += batch.num_rows
        if count > limits["rows"]:
            raise _too_large(f"{limits['rows']:,} rows")
        if batch.nbytes > limits["bytes"]:  # as text it would be larger still
            raise _too_large(f"{limits['bytes']:,} bytes")
        result.add(batch)
        if result.size() > limits["bytes"]:
            raise _too_large(f"{limits['bytes']:,} bytes")
    content = result.end()
    if len(content) > limits["bytes"]:
        raise _too_large(f"{limits['bytes']:,} bytes")
    return {"rows": count}, content


def _too_large(most: str) -> UserError:
    return WrongQueryError(
        f"the result has more than the {most} that a query may return", fix="Aggregate, or add LIMIT"
    )


def _answer(channel: Connection, work: Callable[[], tuple[dict[str, Any], bytes]]) -> None:
    """Send the result of `work`, or its error."""
    try:
        head, content = work()
    except PulseError as error:
        kind = next((kind for kind, cls in KINDS.items() if type(error) is cls), "unavailable")
        channel.send_bytes(orjson.dumps({"error": kind, "message": error.message, "fix": error.fix}))
        return
    channel.send_bytes(orjson.dumps(head))
    channel.send_bytes(content)


def _short(error: Exception) -> str:
    """DuckDB's message, with the place in the query that it points at."""
    return str(error)[:1_000]
