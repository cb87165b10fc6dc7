"""Creating a pipe, with its dataset or its sink's table."""

import psycopg
from psycopg.types.json import Jsonb

from pulse_pipelines.domain.pipes import Definition
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.pipes import sources
from pulse_pipelines.pipes.dataset import find_or_create
from pulse_pipelines.pipes.registry import RESET, Pipe, find
from pulse_pipelines.pipes.sinks import checks
from pulse_resources import postgres
from pulse_resources.errors import AlreadyExists, QuotaExceeded
from pulse_resources.postgres import locks
from pulse_resources.postgres.locks import Lock
from pulse_resources.settings import load_settings

COUNT = "SELECT count(*) FROM pipes WHERE tenant_id = app_tenant()"
EXISTS = "SELECT EXISTS (SELECT FROM pipes WHERE tenant_id = app_tenant() AND pipe = %s)"
INSERT = """
INSERT INTO pipes (tenant_id, pipe, dataset_id, definition, every_seconds, delivers, computes)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""


def create(tenant: Tenant, definition: Definition) -> Pipe:
    """Create a pipe, and its dataset if it does not exist, with a schema derived from the source.

    The dataset of a pipe with a sink exists; with `create` in the definition, the sink's table is created.

    Raises:
        AlreadyExists: the tenant has a pipe of this name, or another one for this dataset.
        NotFound: the source is not configured or lacks the table or files, or the dataset does not exist.
        UserError: it cannot be replicated, or written, or the dataset is of the other kind.
        QuotaExceeded: the tenant has as many pipes as it may have.
        Transient: the source does not answer.
    """
    with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
        # Before a dataset is created, which would stay.
        _admit(connection, tenant, 1)
        ((exists,),) = connection.execute(EXISTS, [definition.pipe]).fetchall()
    if exists:
        raise _name_conflict(tenant, definition)
    dataset = (checks.readable if definition.delivers else find_or_create)(tenant, definition)
    values = [tenant.tenant_id, definition.pipe, dataset.dataset_id, Jsonb(definition.document)]
    values += [definition.every_seconds, definition.delivers, sources.computes(tenant, definition)]
    try:
        with postgres.tenant_transaction("pulse_api", tenant.tenant_id) as connection:
            connection.execute(INSERT, values)
            locks.wait(connection, Lock.DATASETS, tenant.tenant_id)
            _admit(connection, tenant, 0)
            if not definition.delivers:  # positions of an earlier pipe of this name belong to its source
                connection.execute(RESET, [definition.pipe])
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != "pipes_that_bring":
            raise _name_conflict(tenant, definition) from None
        fix = f"Delete that pipe (pulse pipe list {tenant.slug}), or choose another dataset"
        raise AlreadyExists(
            "another pipe writes this dataset",
            fix=fix,
            tenant=tenant.slug,
            pipe=definition.pipe,
            dataset=definition.dataset,
        ) from None
    return find(tenant, definition.pipe)


def _name_conflict(tenant: Tenant, definition: Definition) -> AlreadyExists:
    fix = f"Use it (pulse pipe status {tenant.slug} {definition.pipe}), or choose another name"
    return AlreadyExists(
        "the tenant has a pipe with this name", fix=fix, tenant=tenant.slug, pipe=definition.pipe
    )


def _admit(connection: postgres.Connection, tenant: Tenant, more: int) -> None:
    """Check whether the tenant may have as many pipes as it has, and `more`."""
    limit = load_settings().pipes.max_pipes
    ((count,),) = connection.execute(COUNT).fetchall()
    if 0 <= limit < count + more:
        raise QuotaExceeded(
            f"the tenant may have {limit:,} pipes",
            fix="Delete those that are not used, or have the operator set PULSE_PIPES__MAX_PIPES",
            tenant=tenant.slug,
        )
