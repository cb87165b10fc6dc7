"""Table history: all snapshots but the current one are dropped, with the files that only they reached."""

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.maintenance.expire_snapshots import forget_history
from pulse_resources import postgres

STEP = "history"


def forget(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Make all earlier snapshots unreachable and delete their files. The caller holds the table's lease.

    Raises:
        RolledBack: commits of other writers are missing; nothing was deleted, so that they can be found.
        Transient, OSError, psycopg.OperationalError: run it again.
    """
    done = forget_history(tenant, subject.dataset)
    before = erasure.steps.get(STEP, {"snapshots_dropped": 0, "objects_deleted": 0})
    dropped = done.before["snapshots"] - done.after["snapshots"]
    result = {
        "snapshots_dropped": before["snapshots_dropped"] + dropped,
        "objects_deleted": before["objects_deleted"] + done.after["removed"],
    }
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        record.done(connection, tenant, erasure.erasure_id, STEP, result)
