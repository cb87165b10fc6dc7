"""Settling: one Postgres transaction per tenant that commits its part of a batch.

Fence, swap the metadata pointers, claim the ids of the rows (of entities: advance their log), advance the
positions, write the ledger, commit: all of it or nothing. When the answer to COMMIT is lost, the ledger
decides whether it was committed.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import UUID

from pulse_pipelines.claims import claim_runs
from pulse_pipelines.domain.quota import ENTITIES, EVENTS
from pulse_pipelines.entities import heads, index_entries
from pulse_pipelines.entities.heads import Append
from pulse_pipelines.entities.index_runs import Values
from pulse_pipelines.ingest import attempts, land, late_dead_letters, sync_counts, tenant_parts
from pulse_pipelines.ingest.stages import (
    Failure,
    Landed,
    LandingFailed,
    Plan,
    Settled,
    StagedTable,
    TenantSettled,
)
from pulse_pipelines.ingest.staging import named
from pulse_pipelines.ingest.tenant_parts import TenantPart
from pulse_pipelines.registry import intake
from pulse_pipelines.states import state_keys
from pulse_pipelines.tables import ledger, live_table, raw_zone
from pulse_pipelines.tables.commit import Change, Next, SwapLost, Work, commit
from pulse_pipelines.tables.ledger import RangeAccounting
from pulse_resources import postgres
from pulse_resources.errors import Fenced, Terminal, Transient
from pulse_resources.process.faults import fail_point

CONNECTIONS = 4
"""Tenants that settle at a time."""

DEAD_LETTERS = """
INSERT INTO dead_letters (tenant_id, partition, event_offset, dataset, event_id, reason, pointer,
    detail, payload, received_at, batch_id)
SELECT tenant_id, partition, event_offset, dataset, event_id, reason, pointer, detail, payload,
    received_at, %(batch)s
FROM staging.{dead_letters} WHERE tenant_id = %(tenant)s AND part = ANY(%(parts)s)
"""
OWE_PUBLICATION = "INSERT INTO dead_letter_outbox (tenant_id, batch_id) VALUES (%s, %s)"
FINISH = """
UPDATE ingest_batches b
SET state = 'settled', settled_at = now(), settle_seconds = %s, commit_seconds = %s
WHERE batch_id = %s AND attempt = %s AND state = 'running' AND NOT EXISTS (
    SELECT 1 FROM ingest_ranges r WHERE r.batch_id = b.batch_id AND r.settled_at IS NULL)
"""
IS_SETTLED = """
SELECT b.attempt, bool_and(r.settled_at IS NOT NULL)
FROM ingest_ranges r JOIN ingest_batches b USING (batch_id)
WHERE r.batch_id = %s AND r.tenant_id = %s GROUP BY b.attempt
"""


def settle(landed: Landed, marks: Mapping[UUID, Sequence[int]]) -> Settled:
    """Settle the part of every tenant that has not failed; the others are left to the next attempt.

    Args:
        landed: the staged batch.
        marks: by tenant, the staging marks of its dead letters that `late_dead_letters` made.

    Raises:
        Fenced: a newer attempt owns the batch.
    """
    started, slowest = time.monotonic(), 0.0
    plan = landed.plan
    failures = list(landed.failures)
    tenants: list[TenantSettled] = []
    tables: list[StagedTable] = []
    parts = tenant_parts.tenant_parts(landed, {f.tenant_id for f in failures}, marks)
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="settle") as pool:
        for outcome in pool.map(lambda part: _settle_safely(landed, part), parts):
            if isinstance(outcome, Failure):
                failures.append(outcome)
                continue
            staged, seconds = outcome
            tenants.append(staged.total)
            tables.extend(staged.part.tables)
            slowest = max(slowest, seconds)
    with postgres.transaction("pulse_pipeline") as connection:
        elapsed = time.monotonic() - started
        connection.execute(FINISH, [elapsed, slowest, plan.batch_id, plan.attempt])
    return Settled(plan, tuple(tenants), tuple(tables), tuple(failures))


@dataclass(frozen=True)
class _Staged(Work):
    """A tenant's part of the batch, staged for the commit."""

    landed: Landed
    """The batch; for this tenant, with datasets refused by a restage."""
    part: TenantPart
    accountings: Sequence[RangeAccounting]
    """One for each of its ranges, in their order."""
    total: TenantSettled


def _staged(landed: Landed, part: TenantPart) -> _Staged:
    tables = [
        Next(table.table, table.old_location, table.new_location)
        for table in part.tables
        if table.snapshot_id is not None
    ]
    accountings = [tenant_parts.accounting(landed, part, r) for r in part.ranges]
    return _Staged(
        tables=tables,
        landed=landed,
        part=part,
        accountings=accountings,
        total=tenant_parts.settled(part, accountings),
    )


def _settle_safely(landed: Landed, part: TenantPart) -> tuple[_Staged, float] | Failure:
    """Settle one tenant's part; returns it and the seconds of its transaction, or a failure."""
    try:
        return _settle_tenant(landed, part)
    except Fenced:
        raise
    except Exception as error:  # of any kind: it must not fail the other tenants
        return Failure(part.tenant.tenant_id, "settle", f"{type(error).__name__}: {error}")


def _settle_tenant(landed: Landed, part: TenantPart) -> tuple[_Staged, float]:
    change = _Settlement(part.tenant, landed.plan, _staged(landed, part))
    commit(change)
    return change.staged, time.monotonic() - change.locked_at


@dataclass
class _Settlement(Change[_Staged]):
    """Commits a tenant's part of a batch."""

    plan: Plan
    staged: _Staged
    locked_at: float = 0.0
    """When the transaction began, by the monotonic clock."""
    point = "settle"

    def stage(self, lost: SwapLost | None) -> _Staged:
        if lost is not None:
            self.staged = _restage(self.staged, lost)
        return self.staged

    def lock(self, connection: postgres.Connection, work: _Staged) -> None:
        self.locked_at = time.monotonic()
        attempts.fence(connection, self.plan)

    def write(self, connection: postgres.Connection, work: _Staged) -> None:
        plan, part, total = self.plan, work.part, work.total
        tenant_id = part.tenant.tenant_id
        values: dict[str, object] = {"batch": plan.batch_id, "tenant": tenant_id, "parts": list(part.parts)}
        fail_point("settle.before_claim")
        if (claimed := _claim(connection, work.landed, part)) != total.landed:
            raise Terminal(
                f"the gate let {claimed} ids through, and {total.landed} rows land: nothing was settled",
                fix="This is a defect of Pulse: the next attempt drains the events again",
                tenant=part.tenant.slug,
                batch=plan.batch_id,
            )
        _keep_states(connection, work.landed, part)
        fail_point("settle.before_advance")
        for r, accounting in zip(part.ranges, work.accountings, strict=True):
            ledger.settle(connection, plan.batch_id, r, accounting)
        fail_point("settle.after_advance")
        sync_counts.note(connection, work.landed, part)
        letters = connection.execute(named(DEAD_LETTERS, plan), values).rowcount
        if letters != total.dead_letters:  # the staging table is unlogged: a crash of Postgres empties it
            raise Transient(
                f"{total.dead_letters} dead letters were counted, {letters} are staged: did Postgres crash?",
                fix="The next attempt drains the events again",
                tenant=part.tenant.slug,
                batch=plan.batch_id,
            )
        if letters:
            connection.execute(OWE_PUBLICATION, [tenant_id, plan.batch_id])
        ledger.land(connection, (day for table in part.tables for day in table.landings(plan.batch_id)))
        raw = [raw_file for topic in part.topics for raw_file in topic.raw]
        raw_zone.register(connection, tenant_id, plan.batch_id, raw)
        early = intake.settle(connection, tenant_id, plan.batch_id)
        for kind, tables in _by_kind(part.tables, work.landed.verdicts.appends).items():
            rows = sum(day.rows for table in tables for day in table.days)
            size = sum(file.bytes for table in tables for file in table.files)
            ledger.use(connection, tenant_id, kind, rows, size, min(early, rows) if kind == EVENTS else 0)

    def was_committed(self, work: _Staged) -> bool:
        """Whether this attempt settled the part. Raises Fenced: a newer attempt owns the batch."""
        batch_id, attempt = self.plan.batch_id, self.plan.attempt
        with postgres.transaction("pulse_pipeline") as connection:
            row = connection.execute(IS_SETTLED, [batch_id, self.tenant.tenant_id]).fetchone()
        if row and row[0] != attempt:
            raise Fenced("a newer attempt owns this batch", batch=batch_id, attempt=attempt)
        return row is not None and row[1] is True


def _by_kind(
    tables: Iterable[StagedTable], added: Mapping[UUID, Append]
) -> Mapping[str, Sequence[StagedTable]]:
    """The tables by kind of dataset, under which usage is counted; EVENTS is there even without a table."""
    by_kind: dict[str, list[StagedTable]] = {EVENTS: []}
    for table in tables:
        by_kind.setdefault(ENTITIES if table.dataset_id in added else EVENTS, []).append(table)
    return by_kind


def _claim(connection: postgres.Connection, landed: Landed, part: TenantPart) -> int:
    """Claim the ids of the rows that land (of entities: advance their log); returns the number of rows."""
    count = 0
    for table in part.tables:
        if (added := landed.verdicts.appends.get(table.dataset_id)) is not None:
            count += _append(connection, landed, part, table, added)
        if (fresh := landed.verdicts.fresh.get(table.dataset_id)) is None:
            continue
        if not claim_runs.add(connection, part.tenant.tenant_id, table.dataset_id, fresh):
            raise Transient(
                "a backfill landed an event with the id of one of this batch meanwhile",
                fix="The next attempt drops it as a duplicate",
                tenant=part.tenant.slug,
                dataset=table.slug,
                batch=landed.plan.batch_id,
            )
        count += len(fresh.ids)
    return count


def _append(
    connection: postgres.Connection, landed: Landed, part: TenantPart, table: StagedTable, added: Append
) -> int:
    """Advance a log of entities by its new versions; returns their number."""
    if not heads.advance(connection, part.tenant.tenant_id, table.dataset_id, added):
        raise Transient(
            "the log is not what the batch's versions were compared with: it was written to meanwhile",
            fix="The next attempt compares them with what there is by then",
            tenant=part.tenant.slug,
            dataset=table.slug,
            batch=landed.plan.batch_id,
        )
    for index in added.indexes:  # one that was dropped meanwhile is left out
        number = index.index.index_id
        values = [Values.unpacked(file.values[number]) for file in table.files]
        where = (connection, part.tenant.tenant_id, number)
        index_entries.advance(*where, added.before, added.previous, index.old, values)
    return len(added.positions)


def _keep_states(connection: postgres.Connection, landed: Landed, part: TenantPart) -> None:
    """Merge the newest events into the states of the datasets that have one."""
    logs = landed.verdicts.appends
    files = {table.dataset_id: table.files for table in part.tables if table.dataset_id not in logs}
    late = state_keys.land(connection, part.tenant.tenant_id, files)
    if late is not None:
        raise Transient(
            "a state was declared for the dataset while the batch was on its way",
            fix="The next attempt drains the events again, for the state, too",
            tenant=part.tenant.slug,
            dataset=next(table.slug for table in part.tables if table.dataset_id == late),
            batch=landed.plan.batch_id,
        )


def _restage(staged: _Staged, lost: SwapLost) -> _Staged:
    """The part restaged on the table's current metadata; without the table if its dataset was deleted."""
    landed, part = staged.landed, staged.part
    table = next(table for table in part.tables if table.table == lost.table)
    try:
        now = live_table.current_location(part.tenant.tenant_id, table.table)
        again = land.stage(replace(table, old_location=now), landed.plan.batch_id)
    except Terminal as error:
        return _refuse(landed, part, table, error)
    return _staged(landed, replace(part, tables=tuple(again if t is table else t for t in part.tables)))


def _refuse(landed: Landed, part: TenantPart, table: StagedTable, error: Terminal) -> _Staged:
    """The part without one table, whose rows are staged as dead letters."""
    refused = LandingFailed(table.tenant_id, table.dataset_id, str(error))
    mark = late_dead_letters.stage_rows_of(landed, refused)
    part = replace(
        part,
        tables=tuple(t for t in part.tables if t is not table),
        refused=(*part.refused, refused),
        parts=(*part.parts, mark),
    )
    return _staged(replace(landed, refused=(*landed.refused, refused)), part)
