"""The response to COMMIT is lost after its execution, while another writer commits to the same table."""

import os
import signal
import time
from functools import partial

from chaos import batches
from chaos.load import Load
from chaos.scenario import Outcome, ReportProgress
from chaos.sent import Sent
from chaos.stack import Stack
from chaos.surroundings import with_settings
from chaos.waiting import PATIENCE_S, stands_still, wait
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_resources import iceberg, postgres
from pulse_resources.process.faults import VARIABLE

EVENTS = 200
SETTLED = "SELECT bool_and(settled_at IS NOT NULL) FROM ingest_ranges WHERE batch_id = %s AND tenant_id = %s"


def run(stack: Stack, seed: int, amount: float, report_progress: ReportProgress) -> Outcome:
    """Lose the response to COMMIT repeatedly."""
    load, sent = Load(seed), Sent(batches.make_tenant())
    with with_settings(**batches.ENDLESS_ATTEMPTS):
        for number in range(1, round(amount) + 1):
            sent.send(load.events(EVENTS))
            batch = batches.plan([sent.tenant])
            process = batches.start(
                batch.batch_id, batch.attempt, **stack.by_proxy, **{VARIABLE: "stop:settle.before_commit"}
            )
            wait(partial(stands_still, process.pid), "the run did not come to its COMMIT")
            with stack.postgres.toxic("timeout", timeout=0):  # no response arrives
                os.kill(process.pid or 0, signal.SIGCONT)
                wait(partial(_settled, batch.batch_id, sent.tenant), "COMMIT was not executed")
                for slug in ("orders", "clicks"):
                    _touch(sent.tenant, slug)
                with stack.postgres.cut_off():  # cut open connections
                    pass
            process.join(PATIENCE_S)
            assert process.exitcode == 0, (
                f"the run did not see that its batch is settled; see {batches.log()}"
            )
            assert batches.current(batch.batch_id) is None
            report_progress(number)
        batches.publish_overdue()
    return Outcome([sent], f"{amount:.0f} answers")


def _touch(tenant: Tenant, slug: str) -> None:
    """Commit as another writer."""
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
