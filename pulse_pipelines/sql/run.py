"""Execution of one query: check the SQL, resolve its tables, encode the result."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from pulse_pipelines.domain.json_values import with_text_ids
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.query.formats import JSON
from pulse_pipelines.sql import audit, pinned
from pulse_pipelines.sql.child import WrongQueryError
from pulse_pipelines.sql.confinement import ca_file
from pulse_pipelines.sql.engine import View
from pulse_pipelines.sql.limits import Limits
from pulse_pipelines.sql.manifests import Verdicts
from pulse_pipelines.sql.pinned import PinnedTable, Travel
from pulse_pipelines.sql.processes import CancelledError, Process, Processes, TimeUpError
from pulse_resources.errors import Conflict, FileGone, PulseError, UserError, some_of
from pulse_resources.settings import load_settings
from pulse_resources.store_keys import vended

_HEAD_BYTES = 64 * 1024
_VERDICTS = Verdicts()
_LOOKS = 3
"""Attempts at a query whose tables lose files while it reads them."""


@dataclass(frozen=True)
class QueryRequest:
    """A caller's query."""

    tenant: Tenant
    sql: str
    key_id: str | None = None
    """Id of the API key; None: the command line."""
    query_id: str = field(default_factory=audit.new_id)
    media_type: str = JSON
    travel: Travel = field(default_factory=Travel)


@dataclass(frozen=True)
class Result:
    """The result of a query."""

    content: bytes
    rows: int
    snapshots: Mapping[str, int | None]


Pin = Callable[[Tenant, Sequence[str], Sequence[str], Travel], Sequence[PinnedTable]]
"""As `pinned.tables`."""


def run(
    processes: Processes,
    limits: Limits,
    request: QueryRequest,
    started: Callable[[Process], object] | None = None,
    pin: Pin = pinned.tables,
) -> Result:
    """Run a query and record it.

    Args:
        started: called with the process, so that it can be cancelled; again for each retry.
        pin: resolves the tables that the query names; it may parse what the tenant wrote.

    Raises:
        UserError: the query is wrong, names something forbidden, or exceeds a limit.
        NotFound: the tenant has no such table or snapshot.
        Conflict: it was cancelled, or the tenant already has a query with this id.
        Terminal: a table is damaged, or SQL is not set up.
        Transient: the object store does not answer.
    """
    began = time.monotonic()
    audit.begin(request.tenant, request.query_id, request.key_id, request.sql)
    try:
        result = _run_with_retries(processes, limits, request, started, pin, began + limits.seconds)
    except CancelledError:
        audit.end(request.tenant, request.query_id, "cancelled", time.monotonic() - began)
        raise Conflict("the query was cancelled", query_id=request.query_id) from None
    except TimeUpError:
        late = _too_late(limits)
        audit.end(request.tenant, request.query_id, "failed", time.monotonic() - began, error=str(late))
        raise late from None
    except BaseException as error:
        message = str(error) if isinstance(error, PulseError) else "internal error of Pulse"
        audit.end(request.tenant, request.query_id, "failed", time.monotonic() - began, error=message[:2_000])
        raise
    size, seconds = len(result.content), time.monotonic() - began
    audit.end(request.tenant, request.query_id, "done", seconds, rows=result.rows, size=size)
    return result


def _run_with_retries(
    processes: Processes,
    limits: Limits,
    request: QueryRequest,
    started: Callable[[Process], object] | None,
    pin: Pin,
    until: float,
) -> Result:
    for attempt in range(_LOOKS):
        with processes.take() as process:
            if started is not None:
                started(process)
            try:
                return _run_once(process, limits, request, pin, until)
            except FileGone as error:  # an erasure deleted it, an engine did, or a tenant revoked its keys
                if attempt == _LOOKS - 1:
                    raise as_damage(error) from None
    raise AssertionError


def _run_once(process: Process, limits: Limits, request: QueryRequest, pin: Pin, until: float) -> Result:
    query, _ = process.ask({"sql": request.sql}, until, _HEAD_BYTES)
    tables = pin(request.tenant, _names(query["tables"]), _names(query["maybe"]), request.travel)
    snapshots = {table.name: table.snapshot_id for table in tables}
    audit.pinned(request.tenant, request.query_id, snapshots)
    job = _job(limits, request, tables, snapshots, until)
    try:
        head, content = process.ask(job, until, limits.bytes + _HEAD_BYTES)
    except FileGone as error:
        vended.drop({table.view.access_key for table in tables})
        raise with_table_of(error, tables) from None
    except TimeUpError:
        raise with_table_names(_too_late(limits), tables) from None
    except UserError as error:
        raise with_table_names(error, tables) from None
    checked = head.get("checked")
    for table in tables:
        if table.view.manifest_list is not None and isinstance(checked, dict):
            _VERDICTS.add(table.view.folder, checked.get(table.view.folder))
    return Result(content, int(head["rows"]), snapshots)


def with_table_names(error: UserError, tables: Sequence[PinnedTable]) -> UserError:
    """The error of a query, which names the tables of the tenant's own that it reads.

    Their files are what an engine wrote, and DuckDB seldom says in which of them it failed.
    """
    tenant_tables = [table.name for table in tables if "." in table.name]
    if not tenant_tables or isinstance(error, WrongQueryError):
        return error
    reads = f"The query reads {some_of(tenant_tables)}: check the files that your engine wrote there"
    return type(error)(
        error.message, fix=f"{error.fix.rstrip('.')}. {reads}" if error.fix else reads, **error.where
    )


def with_table_of(error: FileGone, tables: Sequence[PinnedTable]) -> FileGone:
    """The error about a file that is gone, with the tenant's own table in whose folder the file was."""
    for table in tables:
        if "." in table.name and table.view.folder.removeprefix("s3://") in error.message:
            return FileGone(error.message, fix=error.fix, table=table.name)
    return error


def as_damage(error: FileGone) -> PulseError:
    """The error about a file that stays gone: Pulse does not answer for what an engine removed."""
    if "table" not in error.where:
        return error
    return UserError(
        f"the table {error.where['table']!r} cannot be read: {error.message}",
        fix="An engine of yours removed the file: roll the table back, or create it again",
    )


def _too_late(limits: Limits) -> UserError:
    return UserError(
        f"the query took longer than the {limits.seconds:g} s that it may",
        fix="Read fewer columns or a shorter time range, or aggregate first",
    )


def _names(names: object) -> list[str]:
    """Validate the names that the untrusted child sends: each is looked up among the tenant's tables."""
    return [str(name) for name in names] if isinstance(names, list) else []


def _described(view: View) -> dict[str, object]:
    checked = [] if view.manifest_list is None else _VERDICTS.of(view.folder)
    return asdict(view) | {"checked": checked}


def _job(
    limits: Limits,
    request: QueryRequest,
    tables: Sequence[PinnedTable],
    snapshots: Mapping[str, int | None],
    until: float,
) -> dict[str, object]:
    store = load_settings().object_store
    place = urlsplit(store.endpoint)
    return {
        "store": {
            "address": place.netloc,
            "secure": place.scheme == "https",
            "ca_file": ca_file(store),
            "region": store.region,
        },
        "views": [_described(table.view) for table in tables],
        "limits": asdict(limits) | {"seconds": max(1.0, until - time.monotonic())},
        "media_type": request.media_type,
        "about": with_text_ids({"query_id": request.query_id, "snapshots": snapshots}),
    }
