"""State: the newest event of each key, in Postgres, without the person's events.

The commit that removes rows from the table removes them from the dataset's state. Where one was the newest of
its key, the newest that is left takes its place: the state is built from the table again. So are its windows,
which that commit empties: counts and sums have no events that could be removed from them.
"""

from contextlib import suppress

from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.erasure import record
from pulse_pipelines.erasure.record import Erasure
from pulse_pipelines.erasure.subject import Subject
from pulse_pipelines.states import state_build
from pulse_resources import postgres
from pulse_resources.errors import NotFound

STEP = "state"

# By the erased offsets, regardless of the events that the state records.
COUNT_REMAINING = """
SELECT count(*) FROM event_state_keys k
JOIN erased_offsets e USING (tenant_id, partition)
WHERE e.erasure_id = %s AND k.dataset_id = %s AND e.offsets @> k.event_offset
"""
KEYS = "SELECT keys FROM event_states WHERE dataset_id = %s"


def erase(tenant: Tenant, subject: Subject, erasure: Erasure) -> None:
    """Build the dataset's state from the rows left in the table, if it is incomplete.

    Raises:
        Terminal, OSError, psycopg.OperationalError: run it again.
    """
    with suppress(NotFound):  # deleted meanwhile, and its state with it: the next steps raise for it
        state_build.build(tenant, subject.dataset.slug)
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        row = connection.execute(KEYS, [subject.dataset.dataset_id]).fetchone()
        result = {"keys_left": None if row is None else row[0]}
        record.done(connection, tenant, erasure.erasure_id, STEP, result)


def count_remaining(tenant: Tenant, subject: Subject, erasure: Erasure) -> int:
    """Number of erased events that are in the dataset's state."""
    with postgres.tenant_transaction("pulse_pipeline", tenant.tenant_id) as connection:
        values = [erasure.erasure_id, subject.dataset.dataset_id]
        (count,) = connection.execute(COUNT_REMAINING, values).fetchone() or (0,)
    return int(count)
