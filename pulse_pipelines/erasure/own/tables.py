"""Tables of the tenant's own: erased from where their property `pulse.erasure` is `true`.

The engines' tables are the tenant's: an erasure changes one, and drops its history, only where it is asked
to. An erasure from all datasets covers them; the receipt names those that it left, with the reason.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.own.subject import paths_of
from pulse_pipelines.erasure.own.table import Outcome
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.lake import catalog, metadata, paths, table_state
from pulse_pipelines.lake.catalog import OwnTable
from pulse_pipelines.sql.confinement import last_words
from pulse_resources import object_store, postgres
from pulse_resources.errors import PulseError, Terminal, printable
from pulse_resources.store_keys.vended import Mode

STEP = "own_tables"
ASKS = "pulse.erasure"
"""Table property by which a tenant asks for it."""
SHOWN = 5
"""Folders of dropped tables that a receipt names."""
SECONDS = 600
"""Time limit of a table's process."""
WHY_NOT = "its engines write it, it was not searched: delete the rows there, then expire snapshots"
ONE_DATASET = (
    "an erasure from all datasets (without --dataset) erases there: see the receipt of its first dataset"
)


def erase(progress: Callable[[str], None], tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Erase from each table that asks for it, if the erasure is one from all datasets.

    Args:
        progress: called with the step and the table's name, before each.

    Raises:
        Terminal: tables are beyond the limits; what was erased, from the others too, stays so.
    """
    if subject.existing is None:
        return
    outcomes_by_table = {entry["table"]: Outcome(**entry) for entry in erasure.steps.get(STEP, ())}
    beyond: list[Terminal] = []
    for table in asking(tenant):
        progress(f"{STEP}, {table.shown}")
        try:
            outcome = _process(tenant, table, subject, do="erase", erasure_id=erasure.erasure_id)
        except Terminal as error:
            beyond.append(error)  # the tables after it are erased from all the same
            continue
        before = outcomes_by_table.get(table.shown, Outcome(table.shown))
        for name in ("rows", "files", "snapshots", "objects"):
            setattr(outcome, name, getattr(before, name) + getattr(outcome, name))
        outcomes_by_table[table.shown] = outcome
        with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
            entries = [asdict(outcome) for outcome in outcomes_by_table.values()]
            record.done(connection, tenant, erasure.erasure_id, STEP, entries)
    if beyond:
        messages = "; ".join(error.message for error in beyond)
        raise Terminal(messages[:1_500], fix=beyond[0].fix, tenant=tenant.slug)


def count(tenant: Tenant, subject: Subject) -> list[Outcome]:
    """Count what an erasure from all datasets would now remove from tables that ask for it."""
    return [_process(tenant, table, subject, do="count") for table in asking(tenant)]


def search_again(tenant: Tenant, subject: Subject, erasure: Erasure) -> list[Outcome]:
    """Search the tables that the erasure covered again, for files that they had then."""
    by_name = {table.shown: table for table in catalog.tenant_tables(tenant)}
    return [
        _process(tenant, by_name[item.table], subject, do="left", uuid=item.uuid, sequence=item.sequence)
        for item in erased(erasure.steps)
        if item.table in by_name
    ]


def erased(steps: Mapping[str, Any]) -> list[Outcome]:
    """The tables that an erasure searched, by its record."""
    return [outcome for outcome in outcomes(steps) if outcome.reason is None and outcome.has_column]


def remains(tenant: Tenant, subject: Subject, steps: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The tables that were not searched; only their engines know which of them hold copies.

    Raises:
        OSError: the object store failed.
    """
    done = {outcome.table: outcome for outcome in outcomes(steps)}
    asking_tables = {table.shown for table in asking(tenant)} if subject.existing is None else set()
    for name in (table.shown for table in catalog.tenant_tables(tenant)):
        outcome = done.get(name)
        if outcome is not None and outcome.reason is None:
            continue  # searched, or it has no such column
        why = f"it was not erased from: {outcome.reason}" if outcome else WHY_NOT
        yield {
            "where": f"the tenant's own table {name}: its rows, and those of its earlier snapshots",
            "until": None,
            "why": ONE_DATASET if outcome is None and name in asking_tables else why,
        }
    if dropped := folders_without_table(tenant):
        yield {
            "where": f"{len(dropped)} folders with data that belong to no table now: "
            + ", ".join(dropped[:SHOWN])
            + (", ..." if len(dropped) > SHOWN else ""),
            "until": None,
            "why": "dropping a table of the tenant's own leaves its files, and `register` brings it back: "
            "register it, then erase again, or drop it with its files (PURGE)",
        }


def folders_without_table(tenant: Tenant) -> list[str]:
    """Folders with data that belong to no table of the catalog: dropped, or not entered yet.

    Raises:
        OSError: the object store failed.
    """
    store = metadata.file_system(tenant, Mode.READ)
    locations = {table.location for table in catalog.tenant_tables(tenant)}
    folders = object_store.folders(paths.tenant_folder(tenant), store)
    unknown = (folder for folder in folders if folder not in locations)
    return [folder for folder in unknown if next(object_store.listed(f"{folder}/data", store), None)]


def asking(tenant: Tenant) -> list[OwnTable]:
    """The tables whose property asks for erasures."""
    return [table for table in catalog.tenant_tables(tenant) if _asks_for_erasure(tenant, table)]


def _asks_for_erasure(tenant: Tenant, table: OwnTable) -> bool:
    try:
        return table_state.property_of(metadata.read(tenant, table.at).document(), ASKS) == "true"
    except (PulseError, ValueError, AttributeError):  # its metadata is damaged: it is named
        return False


def outcomes(steps: Mapping[str, Any]) -> Sequence[Outcome]:
    """The outcome for each table that asks for erasures, by the record."""
    return [Outcome(**entry) for entry in steps.get(STEP, ())]


def _process(tenant: Tenant, table: OwnTable, subject: Subject, **arguments: object) -> Outcome:
    request = {
        "tenant_id": str(tenant.tenant_id),
        "tenant": tenant.slug,
        "table": asdict(table),
        "paths": paths_of(subject),
        "value": subject.value,
    } | arguments
    command = [sys.executable, "-m", "pulse_pipelines.erasure.own.process"]
    try:
        ended = subprocess.run(
            command, input=orjson.dumps(request), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _failed_erasure(f"it took more than {SECONDS} s", tenant, table) from None
    if ended.returncode:
        why = last_words(ended.stderr)[:300].replace(subject.value, "…")
        raise _failed_erasure(f"its process ended with {ended.returncode}: {why}", tenant, table)
    outcome = Outcome(**orjson.loads(ended.stdout.splitlines()[-1]))
    return outcome if outcome.reason is None else replace(outcome, reason=printable(outcome.reason))


def _failed_erasure(why: str, tenant: Tenant, table: OwnTable) -> Terminal:
    return Terminal(
        f"the person could not be erased from the tenant's own table {table.shown}: {why}",
        fix="Repeat the command: files that were written again stay so. If it fails again, delete the rows "
        f"with an engine and set the table's property {ASKS} to false: the receipt then names the table",
        tenant=tenant.slug,
    )
