"""`pulse alerts`: current and past alerts, and a test of the notifiers."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, cell, emit, show_table
from pulse_pipelines.monitoring import alerts
from pulse_resources import notify, settings

app = typer.Typer(help="Alerts: current and past problems, and whether they were sent.")


@app.callback(invoke_without_command=True)
def list_alerts(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also show resolved alerts.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of alerts to show.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List current alerts, the latest first. The sensor `alert_watch` checks every 30 seconds.

    Example: pulse alerts --all
    """
    if context.invoked_subcommand is not None:
        return
    entries = alerts.remembered(everything=everything, limit=limit)
    if as_json:
        emit([notify.document(entry.alert) | {"told": entry.deliveries} for entry in entries])
        return
    rows = (_row(entry) for entry in entries)
    columns = ("since", "until", "severity", "kind", "what", "what to do", "told")
    show_table(
        columns,
        rows,
        empty="Nothing is wrong" if not everything else "Nothing was wrong",
        spare=("told", "kind", "until"),
    )


@app.command("test")
def send_test(as_json: AsJson = False) -> None:
    """Send a test alert through every notifier, now. Exit code 1 if one fails.

    Example: pulse alerts test
    """
    now = datetime.now(UTC)
    alert = notify.Alert(
        key="test",
        kind="test",
        severity="warning",
        about={},
        summary="this is a test, sent by `pulse alerts test`",
        fix="Do nothing",
        first_seen=now,
        last_seen=now,
    )
    outcomes = {name: alerts.tell(name, [alert]) for name in settings.load_settings().alerts.notifiers}
    if as_json:
        emit([{"notifier": name, "error": error} for name, error in outcomes.items()])
    else:
        rows = ((name, error or "was told") for name, error in outcomes.items())
        show_table(("notifier", "outcome"), rows, empty="No notifier is set: PULSE_ALERTS__NOTIFIERS")
    if any(outcomes.values()) or not outcomes:
        raise typer.Exit(FAILED)


def _row(entry: "alerts.Remembered") -> tuple[Any, ...]:
    alert = entry.alert
    notifications = (
        f"{name}: {_last_delivery(outcome)}" for name, outcome in sorted(entry.deliveries.items())
    )
    return (
        alert.first_seen,
        alert.resolved_at,
        alert.severity,
        alert.kind,
        alert.summary,
        alert.fix,
        "; ".join(notifications),
    )


def _last_delivery(outcome: Any) -> str:
    if outcome["error"]:
        return f"not told: {outcome['error']}"
    at = outcome["notified_at"]
    return cell(datetime.fromisoformat(at)) if at else "not yet"
