"""Work that is repeated, against the amount of data: processor time of this process and of Postgres.

The broker is not asked: `tick` has its costs. Dagster's storage is empty, in memory.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from unittest.mock import patch

import dagster as dg

from benchmarks.registered import Registry
from pulse_pipelines.domain.batch import OffsetRange
from pulse_pipelines.ingest import attempts, plan
from pulse_pipelines.ingest.plan import IngestStatus
from pulse_pipelines.tables import ledger
from pulse_pipelines.tables.ledger import RangeAccounting
from pulse_resources import postgres
from pulse_resources.local import processes, state
from pulse_resources.local.layout import Layout
from pulse_resources.settings import load_settings

TIMES = 3
NEW_BATCH = "INSERT INTO ingest_batches (batch_id) VALUES ('new')"
SENSORS = (
    "registry_changes",
    "alert_watch",
    "pipes_due",
    "pipes_watched",
    "curated_due",
    "upkeep_needed",
    "dataset_moves",
    "cli_backfill_events",
    "syncs",
    "dead_letter_sweep",
)


def measure(registry: Registry, of: str, count: int) -> Iterator[tuple[str, float]]:
    """Case, and processor seconds of doing it, the least of a few; the registry grows to a count of one kind.

    Args:
        of: one of `registered.STATEMENTS`.
    """
    registry.grow(**{of: count})
    for label, work in _cases().items():
        yield label, min(_spent(work) for _ in range(TIMES))


def _cases() -> Mapping[str, Callable[[], object]]:
    from pulse_pipelines import registry
    from pulse_pipelines.definitions import defs
    from pulse_pipelines.monitoring import doctor, status
    from pulse_pipelines.registry import tenant_view
    from pulse_pipelines.runtime import run_scope

    run_scope.build_parted()
    sensors = {sensor.name: sensor for sensor in (defs().sensors or ())}
    first = registry.find_tenant("tenant_1")
    instance, cursors = dg.DagsterInstance.ephemeral(), dict[str, str | None]()
    settled, accounting = OffsetRange(first.tenant_id, 1, 0, 1), RangeAccounting(1, 1, 0, 0)

    def settle() -> None:
        """Plan a batch of one event, and settle it, in a transaction that is rolled back."""
        with (
            postgres.tenant_transaction("pulse_pipeline", first.tenant_id) as connection,
            connection.transaction(force_rollback=True),
        ):
            connection.execute(NEW_BATCH)
            ledger.advance_planned(connection, settled, None, 0)
            ledger.plan(connection, "new", settled)
            ledger.settle(connection, "new", settled, accounting)

    def tick(name: str) -> None:
        context = dg.build_sensor_context(instance=instance, cursor=cursors.get(name))
        result = sensors[name].evaluate_tick(context)
        cursors[name] = result.cursor or cursors.get(name)

    ticks = {f"tick of {name}": lambda name=name: tick(name) for name in SENSORS if name in sensors}
    return {
        **ticks,
        "`pulse status`, `/metrics`": status.gather,
        "`GET /v1/...`: view of a tenant": lambda: tenant_view.load_view(first.tenant_id),
        "reload: what is in no part": lambda: defs().get_repository_def(),
        "a batch: planned and settled in the ledger": settle,
        "open batches": attempts.open_batches,
        "`pulse doctor`: Postgres": lambda: list(doctor.examine("postgres")),
        "checks of a dataset: its owners": lambda: registry.family_owners("dataset_1"),
        "`pulse tenant list`": registry.list_tenants,
    }


def _spent(work: Callable[[], object]) -> float:
    nothing = IngestStatus((), frozenset(), frozenset(), {}, {}, {}, (), {})
    served = _postgres()
    with patch.object(plan, "ingest_status", lambda *_: nothing):
        began = time.process_time()
        work()
        spent = time.process_time() - began
    return spent + _postgres() - served


def _postgres() -> float:
    running = state.read(Layout(load_settings().home))
    root = running.services["postgres"].process if running else None
    return processes.processor_time(root) if root else 0.0
