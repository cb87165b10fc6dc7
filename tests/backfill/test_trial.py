"""A trial of a schema says what it would refuse of a day that is taken today, and changes nothing."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.here import ingest_here as ingest
from support.ingest import SCHEMA, Owner, event
from support.lake import DAY
from typer.testing import CliRunner, Result

from chaos.surroundings import superuser
from pulse_api import cli
from pulse_api.cli.arguments import day
from pulse_api.cli.schema import _show_trial
from pulse_pipelines import registry
from pulse_pipelines.backfill import Trial, try_schema

MOST = 1_000_000


def changed(**properties: Any) -> str:
    return json.dumps(SCHEMA | {"properties": SCHEMA["properties"] | properties})


def tried(owner: Owner, document: str, most: int = MOST) -> Trial:
    return try_schema(owner.tenant, "orders", document, DAY, most)


@pytest.fixture
def settled(owner: Owner) -> Owner:
    """With five good events, a re-delivery of one, and one that is a dead letter."""
    owner.send(*(event(f"e{n}", country=f"c{n}") for n in range(5)), event("e0", country="c0"))
    owner.send(event("bad", country=7))
    ingest(owner)
    return owner


def test_a_trial_counts_and_shows_the_events_that_a_schema_would_refuse(settled: Owner) -> None:
    before = settled.rows()
    trial = tried(settled, changed(country={"type": "string", "enum": ["c4"]}))
    assert (trial.refused, trial.complete) == (5, True)
    assert trial.events - trial.refused_already == 6, "re-deliveries included"
    assert len(trial.examples) == 3
    assert {example.event_id for example in trial.examples} <= {f"e{n}" for n in range(5)}
    assert {(example.reason, example.pointer) for example in trial.examples} == {
        ("schema_violation", "/data/country")
    }
    assert trial.incompatibilities, "an enumeration is narrower"
    assert settled.rows() == before
    assert len(registry.list_schemas(settled.tenant)) == 1


def test_a_schema_that_takes_everything_refuses_nothing(settled: Owner) -> None:
    trial = tried(settled, changed(colour={"type": "string"}))
    assert (trial.refused, trial.examples, trial.incompatibilities) == (0, (), ())


def test_a_column_that_could_not_hold_a_value_counts(owner: Owner) -> None:
    owner.send(event("a", note="2026-11-19"), event("b", note="19.11.2026"))
    ingest(owner)
    trial = tried(owner, changed(note={"type": "string", "format": "date"}))
    ((example),) = trial.examples
    assert (example.event_id, example.reason, example.pointer) == ("b", "unrepresentable", "/data/note")


def test_a_trial_reports_that_its_limit_was_reached(settled: Owner) -> None:
    trial = tried(settled, changed(), most=2)
    assert (trial.events, trial.complete) == (2, False)


def test_nothing_that_was_erased_is_shown(owner: Owner) -> None:
    owner.send(event("a", country="ada"), event("b"))
    ingest(owner)
    with superuser() as connection:
        connection.execute(
            "INSERT INTO erased_offsets VALUES (%s, 'x', 0, '{[0,1)}')",
            [owner.tenant.tenant_id],
        )
    trial = tried(owner, changed(country={"type": "integer"}))
    assert trial.refused == 2
    assert [example.event_id for example in trial.examples] == ["b"]


def command(owner: Owner, file: Path, *more: str) -> Result:
    words = ["schema", "try", owner.tenant.slug, str(file), "--against", "orders", "--day", str(DAY), *more]
    return CliRunner().invoke(cli.app, words)


def test_a_trial_counts_events_that_both_schemas_refuse_separately(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show_trial(Trial(DAY, 2, 0, 1, (), complete=True, incompatibilities=()))
    shown = f"2 events of {DAY}: 0 would be refused, beside 1 that the current schema refuses, too\n"
    assert capsys.readouterr().out == shown


def test_the_command_prints_the_refused_events_and_exits_with_1(settled: Owner, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text(changed(country={"type": "string", "enum": ["c4"]}))
    result = command(settled, file)
    assert result.exit_code == 1
    assert f"events of {DAY}: 5 would be refused\n" in result.stdout
    assert "/data/country" in result.stdout
    assert "The dataset cannot move to this schema" in result.stderr
    assert json.loads(command(settled, file, "--json").stdout)["refused"] == 5
    file.write_text(changed())
    assert command(settled, file).exit_code == 0
    file.write_text("{")
    assert "the schema is not JSON" in command(settled, file).stderr


def test_a_day_may_be_named() -> None:
    today = datetime.now(UTC).date()
    assert day("yesterday") in (today - timedelta(days=1), today)
    assert day("2026-11-19") == DAY
