"""Timestamps outside the accepted range: refused at the door, dead letters, and back again."""

import json
from datetime import date

from support.far import ANY_TIME, LAST
from support.here import ingest_here as ingest
from support.http import Caller, sample
from support.ingest import Owner, event
from support.lake import DAY, spark

from chaos.surroundings import superuser, with_settings
from pulse_pipelines import registry
from pulse_pipelines.backfill import backfill
from pulse_pipelines.dead_letters import DeadLetterOutcome, Filter, replay
from pulse_pipelines.domain.dataset import OnInvalid
from pulse_pipelines.domain.reasons import Reason
from pulse_pipelines.monitoring.reconcile import reconcile_tenant

FAR = "9999-12-31T00:00:00Z"


def dated(event_id: str, timestamp: str, **data: object) -> bytes:
    return json.dumps(json.loads(event(event_id, **data)) | {"timestamp": timestamp}).encode()


def test_the_door_refuses_a_timestamp_out_of_range_and_names_the_range(caller: Caller) -> None:
    uri = registry.find_dataset(caller.owner.tenant, "orders").schema_uri
    registry.create_dataset(caller.owner.tenant, "kept", uri, on_invalid=OnInvalid.DEAD_LETTER)
    answer = caller.collect([sample("good"), sample("far") | {"timestamp": FAR}])
    assert answer.status_code == 207
    (verdict,) = answer.json()["verdicts"]
    assert (verdict["event_id"], verdict["status"]) == ("far", "refused")
    assert (verdict["reason"], verdict["pointer"]) == ("timestamp_out_of_range", "/timestamp")
    assert f"{FAR} is outside the accepted range from 1970-01-01T00:00:00Z to 2" in verdict["detail"]
    answer = caller.collect(sample("old") | {"dataset": "kept", "timestamp": "1969-12-31T23:59:59Z"})
    assert (answer.status_code, answer.json()["dead_lettered"]) == (202, 1)
    ingest(caller.owner)
    (letter,) = caller.owner.dead_letters()
    assert (letter["reason"], letter["pointer"]) == ("timestamp_out_of_range", "/timestamp")
    assert [row["id"] for row in caller.owner.rows()] == ["good"]


def test_timestamps_out_of_range_are_dead_letters_until_the_range_is_wider(owner: Owner) -> None:
    with with_settings(**ANY_TIME):
        owner.send(dated("landed", FAR))
        ingest(owner)
    owner.send(dated("far", FAR), dated("old", "1969-12-31T23:59:59Z"), event("usual"))
    ingest(owner)
    assert [row["id"] for row in owner.rows()] == ["landed", "usual"]
    letters = owner.dead_letters()
    assert {letter["reason"] for letter in letters} == {Reason.TIMESTAMP_OUT_OF_RANGE}

    def rebuild(day: date) -> tuple[int, int]:
        done = backfill(spark(), owner.tenant, "orders", day, parallelism=1)
        return done.rows, done.dead_letters_landed

    assert rebuild(LAST) == (1, 0), "what landed lands again whatever the setting is now, a letter does not"
    result = replay(owner.tenant, Filter())
    assert {verdict.outcome for verdict in result.verdicts} == {DeadLetterOutcome.REJECTED}
    with with_settings(**ANY_TIME):
        assert rebuild(LAST) == (2, 1), "a letter that lands for the first time is judged by the setting"
        (verdict,) = replay(owner.tenant, Filter()).verdicts
        assert verdict.outcome is DeadLetterOutcome.PUBLISHED
        ingest(owner)
    assert {row["id"] for row in owner.rows()} == {"landed", "usual", "far", "old"}
    assert reconcile_tenant(owner.tenant).balanced


def test_a_replay_is_judged_by_the_time_of_its_new_publication(owner: Owner) -> None:
    """A sender's clock was ahead: by the time of the replay, the moment has passed."""
    with with_settings(INGEST__TIMESTAMP_AHEAD_SECONDS=0):
        owner.send(event("a", dataset="later"))
        ingest(owner)
        uri = registry.find_dataset(owner.tenant, "orders").schema_uri
        registry.create_dataset(owner.tenant, "later", uri)
        with superuser() as connection:  # it was received before the moment that it names
            received = "UPDATE dead_letters SET received_at = %s WHERE tenant_id = %s"
            connection.execute(received, [f"{DAY}T09:00:00Z", owner.tenant.tenant_id])
        (verdict,) = replay(owner.tenant, Filter(), dry_run=True).verdicts
        assert verdict.outcome is DeadLetterOutcome.WOULD_LAND
        assert backfill(spark(), owner.tenant, "later", DAY, parallelism=1).dead_letters_landed == 0
