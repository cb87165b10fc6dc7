"""Questions over entities: what is counted is their latest state, each once."""

import asyncio

from support.entities import entity, make_entities
from support.here import ingest_here as ingest
from support.ingest import Owner

from pulse_pipelines.ask import answer, local


def test_an_entity_counts_once_as_it_is_now_and_not_when_it_is_deleted(owner: Owner) -> None:
    make_entities(owner, "nations")
    owner.send(
        *(entity(key, slug="nations", people=people) for key, people in (("DE", 80), ("FR", 60), ("NL", 17)))
    )
    ingest(owner)
    owner.send(entity("DE", slug="nations", people=83), entity("FR", slug="nations", _deleted=True))
    ingest(owner)
    with local.queries(owner.tenant) as run:
        reply = asyncio.run(
            answer.answer(owner.tenant, "What is the total people of nations?", answer.Grammar(), run)
        )
    assert list(reply.rows) == [{"sum_people": 100}]
