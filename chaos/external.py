"""External writers: engines that commit to a tenant's own table through the REST catalog, by a key."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import uvicorn
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ValidationException,
)

from chaos.oracle import Finding
from pulse_api.http.logs import ACCESS
from pulse_api.lake.app import create_app
from pulse_pipelines.domain.key import KeyScope
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.registry import keys

TABLE = ("own", "written")
PROPERTIES = {
    "pulse.upkeep": "true",
    "history.expire.max-snapshot-age-ms": "60000",
    "history.expire.min-snapshots-to-keep": "2",
}
"""Upkeep keeps little, so that a wrong removal shows at once."""
SCHEMA = pa.schema([pa.field("id", pa.int64())])
ROWS = 20
PER_WRITER = 10**9
CHATTY = {"pyiceberg": logging.ERROR, ACCESS: logging.WARNING}
"""Loggers of a line per lost race and per request, thousands here, and what of them is printed."""


@contextmanager
def catalog() -> Iterator[str]:
    """The REST catalog in this process; its address."""
    for name, level in CHATTY.items():
        logging.getLogger(name).setLevel(level)
    server = uvicorn.Server(uvicorn.Config(create_app(), host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run, name="catalog", daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the catalog did not start"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.NOTSET)


def engine(tenant: Tenant, url: str) -> RestCatalog:
    """PyIceberg with a new key of the tenant."""
    key = keys.issue_key(tenant, "engine", (KeyScope.LAKE_READ, KeyScope.LAKE_WRITE))
    return RestCatalog("lake", uri=url, warehouse=tenant.slug, token=key.text)


def create(tenant: Tenant, url: str) -> None:
    """Create the table that the writers write."""
    client = engine(tenant, url)
    client.create_namespace(TABLE[0])
    client.create_table(TABLE, SCHEMA, properties=PROPERTIES)


@dataclass
class EngineWriter:
    """One engine, with the answers of the catalog about its rows.

    Args:
        number: of this writer; its ids begin with it.
    """

    client: RestCatalog
    number: int
    committed: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """Rows about which it got no answer."""
    _last: int = 0

    def write(self, tenant: Tenant, draw: random.Random) -> str:
        """Append some rows, or delete one; returns the outcome."""
        if self.committed and draw.random() < 0.3:
            return self._delete(draw.choice(sorted(self.committed)))
        first = self.number * PER_WRITER + self._last
        self._last += ROWS
        return self._commit("append", set(range(first, first + ROWS)))

    def _delete(self, row: int) -> str:
        return self._commit("delete", {row})

    def _commit(self, kind: str, rows: set[int]) -> str:
        try:
            table = self.client.load_table(TABLE)
            if kind == "append":
                table.append(pa.table({"id": sorted(rows)}, SCHEMA))
                self.committed |= rows
            else:
                table.delete(f"id = {min(rows)}")
                self.committed -= rows
        except (CommitFailedException, ValidationException):  # also: it was to follow an expired snapshot
            return f"external {kind} lost"
        except (CommitStateUnknownException, RESTError):
            self.unknown |= rows
            self.committed -= rows
            return f"external {kind} without an answer"
        return f"external {kind}"


def compare_table(tenant: Tenant, client: RestCatalog, writers: list[EngineWriter]) -> list[Finding]:
    """Compare the table with the commits that its writers report, and read every snapshot of it."""
    table = client.load_table(TABLE)
    ids: list[int] = table.scan().to_arrow()["id"].to_pylist()
    committed = set().union(*(writer.committed for writer in writers))
    unknown = set().union(*(writer.unknown for writer in writers))
    findings = []
    if len(ids) != len(set(ids)):
        findings.append(Finding("external: double rows", tenant.slug, f"{len(ids) - len(set(ids))} rows"))
    if lost := committed - set(ids):
        findings.append(Finding("external: lost rows", tenant.slug, f"{len(lost)}: {sorted(lost)[:5]}"))
    if more := set(ids) - committed - unknown:
        findings.append(
            Finding("external: rows from nowhere", tenant.slug, f"{len(more)}: {sorted(more)[:5]}")
        )
    for snapshot in table.metadata.snapshots:
        try:
            table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        except OSError as error:
            at = f"snapshot {snapshot.snapshot_id}: {error}"
            findings.append(Finding("external: unreadable snapshot", tenant.slug, at))
    return findings
