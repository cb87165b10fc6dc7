"""The answer to COMMIT is lost after Postgres executed it, while another writer commits to the same table."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from chaos import batches
from chaos.load import Load
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.waiting import stopped, wait
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import iceberg, postgres
from pulse_resources.faults import VARIABLE

EVENTS = 200
SETTLED = "SELECT bool_and(settled_at IS NOT NULL) FROM ingest_ranges WHERE batch_id = %s AND tenant_id = %s"


def run(stack: Stack, seed: int, cuts: int, told: Callable[[int], None]) -> list[Sent]:
    """Lose the answer to COMMIT again and again.

    Args:
        stack: its Postgres is behind a proxy.
        seed: of the events.
        cuts: answers that are lost.
        told: called with the number of cuts so far.

    Returns:
        What was sent.
    """
    load, sent = Load(seed), Sent(batches.make_tenant())
    with batches.with_environment(batches.ENDLESS_ATTEMPTS):
        for number in range(1, cuts + 1):
            sent.send(load.events(EVENTS))
            batch = batches.plan([sent.tenant])
            assert batch, "what was sent is not there"
            process = batches.start(
                batch.batch_id, batch.attempt, **stack.by_proxy, **{VARIABLE: "stop:settle.before_commit"}
            )
            wait(partial(stopped, process), "the run did not come to its COMMIT")
            with stack.postgres.toxic("timeout", timeout=0):  # nothing comes back any more
                os.kill(process.pid or 0, signal.SIGCONT)
                wait(partial(_settled, batch.batch_id, sent.tenant), "COMMIT was not executed")
                for slug in ("orders", "clicks"):
                    _touch(sent.tenant, slug)
                with stack.postgres.gone():  # and what is open is cut
                    pass
            process.join(batches.PATIENCE_S)
            assert process.exitcode == 0, (
                f"the run did not see that its batch is settled; see {batches.log()}"
            )
            assert batches.current(batch) is None
            told(number)
        batches.sweep()
    return [sent]


def _touch(tenant: Tenant, slug: str) -> None:
    """Another writer's commit."""
    name = (tenant.namespace, slug)
    location = registry.current_table(tenant, slug).metadata_location
    table = iceberg.load_table(name, location)
    with table.transaction() as transaction:
        transaction.set_properties({"touched": str(time.time_ns())})
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        assert iceberg.swap(connection, name, location, table.metadata_location)


def _settled(batch: str, tenant: Tenant) -> bool:
    with postgres.transaction("pulse_pipeline") as connection:
        return connection.execute(SETTLED, [batch, tenant.tenant_id]).fetchone() == (True,)
