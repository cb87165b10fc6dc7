"""Claims as a test wants them: ids that a dataset's runs lose, or get."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pulse_pipelines import registry
from pulse_pipelines.claims import claim_runs
from pulse_pipelines.claims.claim_cache import Run
from pulse_pipelines.domain.dataset import Dataset
from pulse_pipelines.tables.digests import Digests
from pulse_resources import postgres
from support.ingest import Owner
from support.lake import superuser

IDS = "processed_event_ids"


def changed_claims(
    owner: Owner, *, lost: Iterable[str] = (), got: Iterable[str] = (), slug: str = "orders"
) -> str:
    """SQL that makes one run of a dataset's, without some ids and with others; {mine} is its tenant."""
    dataset = registry.find_dataset(owner.tenant, slug)
    with superuser() as connection:
        query = f"SELECT digests FROM {IDS} WHERE dataset_id = %s"
        runs = [Digests.unpacked(packed) for (packed,) in connection.execute(query, [dataset.dataset_id])]
    claimed, dropped = (
        Digests.joined(runs).run(),
        Digests.of(sorted(lost), dataset.claim_seed).run(),
    )
    remaining = claimed[~claimed.within(dropped)]
    assert len(remaining) + len(dropped) == len(claimed), "an id that is to be lost is not claimed"
    run = Digests.joined([remaining, Digests.of(sorted(got), dataset.claim_seed)]).run()
    return f"""
        WITH gone AS (DELETE FROM {IDS} WHERE {{mine}} AND dataset_id = '{dataset.dataset_id}'
            RETURNING tenant_id, dataset_id, ends, claimed_on)
        INSERT INTO {IDS} (tenant_id, dataset_id, run, newest, ids, ends, claimed_on, digests)
        SELECT tenant_id, dataset_id, run, run, {len(run)}, ends, claimed_on, '\\x{run.packed().hex()}'
        FROM (SELECT * FROM gone LIMIT 1) g, nextval('claim_runs') run
    """


def orders(owner: Owner) -> Dataset:
    return registry.find_dataset(owner.tenant, "orders")


@contextmanager
def session(owner: Owner) -> Iterator[postgres.Connection]:
    with postgres.tenant_transaction("pulse_pipeline", owner.tenant.tenant_id) as connection:
        yield connection


def fresh_of(owner: Owner, ids: Sequence[str]) -> claim_runs.Fresh:
    dataset = orders(owner)
    with session(owner) as connection:
        own = claim_runs.runs(connection, [dataset.dataset_id])[dataset.dataset_id]
        positions = np.arange(len(ids), dtype=np.int64)
        return claim_runs.fresh(connection, own, Digests.of(ids, dataset.claim_seed).run(), positions)


def add(owner: Owner, fresh: claim_runs.Fresh) -> bool:
    with session(owner) as connection:
        return claim_runs.add(connection, owner.tenant.tenant_id, orders(owner).dataset_id, fresh)


def runs(owner: Owner) -> list[Run]:
    dataset_id = orders(owner).dataset_id
    with session(owner) as connection:
        return claim_runs.runs(connection, [dataset_id])[dataset_id]


def known(owner: Owner, *ids: str) -> set[str]:
    with session(owner) as connection:
        return claim_runs.claimed_ids(connection, orders(owner), ids)


def names(count: int, prefix: str = "e") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]
