"""Groups of dead letters cost one pass over the letters, also of a batch with many groups."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from support.ingest import Owner

from chaos.surroundings import superuser
from pulse_pipelines import dead_letters
from pulse_pipelines.dead_letters import letters
from pulse_pipelines.domain.requests import LetterState
from pulse_resources import postgres

LETTERS, PLACES = 2_000, 200
SETTLED = datetime(2026, 11, 19, tzinfo=UTC)
INSERT = """
INSERT INTO dead_letters (tenant_id, partition, event_offset, dataset, event_id, reason, pointer, detail,
    payload, received_at, batch_id, settled_at, published_at)
SELECT %(tenant)s, 7, n, 'orders', 'e-' || n, 'schema_violation', '/data/p' || (n %% %(places)s),
    'detail of ' || n, '', %(settled)s, 'b-1', %(settled)s, %(settled)s
FROM generate_series(1, %(letters)s) n
"""


@pytest.fixture
def crowded(owner: Owner) -> Iterator[Owner]:
    """A tenant with many dead letters of one batch."""
    values = {"tenant": owner.tenant.tenant_id, "letters": LETTERS, "places": PLACES, "settled": SETTLED}
    with superuser() as connection:
        connection.execute(INSERT, values)
    yield owner
    with superuser() as connection:
        connection.execute("DELETE FROM dead_letters WHERE tenant_id = %s", [owner.tenant.tenant_id])


def _rows_of_scans(plan: dict[str, Any]) -> float:
    """Rows that all scans of a plan read."""
    read = plan.get("Actual Rows", 0) + plan.get("Rows Removed by Filter", 0)
    own = read * plan["Actual Loops"] if "Relation Name" in plan else 0
    return own + sum(_rows_of_scans(part) for part in plan.get("Plans", ()))


def test_letters_of_one_batch_are_read_once_however_many_groups_they_have(crowded: Owner) -> None:
    query = letters.GROUPS.format(state="resolution IS NULL")
    values = letters.Filter().values() | {"limit": PLACES}
    with postgres.tenant_transaction("pulse_api", crowded.tenant.tenant_id) as connection:
        connection.execute(letters.NO_LOOP)
        explained = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values).fetchone()
    assert explained
    assert _rows_of_scans(explained[0][0]["Plan"]) <= 2 * LETTERS + PLACES


def test_the_example_of_a_group_is_its_latest_letter(crowded: Owner) -> None:
    groups = dead_letters.groups(crowded.tenant, state=LetterState.OPEN, limit=PLACES)
    examples = {group.place: (group.count, group.example_id, group.example_detail) for group in groups}
    assert examples == {
        f"/data/p{n % PLACES}": (LETTERS // PLACES, f"7-{n}", f"detail of {n}")
        for n in range(LETTERS - PLACES + 1, LETTERS + 1)
    }
