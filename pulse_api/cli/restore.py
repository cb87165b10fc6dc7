"""`pulse restore`: compare Postgres, the object store and Kafka after a restore, and repair what differs."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from pulse_api.cli import complete, interrupted
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, counted, emit, emit_or_say, remark, say, shown, working
from pulse_pipelines import registry
from pulse_pipelines.domain.tenant import Tenant
from pulse_pipelines.restore import findings, repair as repairs
from pulse_pipelines.tables import store_mark
from pulse_resources import settings, spark
from pulse_resources.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    help="After Postgres or the object store came back from a backup: compare and repair.",
)

TenantOrAll = Annotated[
    str | None, typer.Argument(help="One tenant; by default all.", autocompletion=complete.tenants)
]


@app.command("check")
def check(tenant: TenantOrAll = None, as_json: AsJson = False) -> None:
    """Name what differs between Postgres, the object store and Kafka; change nothing.

    Looks for tables and raw objects whose files are gone, topics that lack what was not ingested yet, commits
    of other engines that Postgres has lost, and data of tenants and tables that it does not know. What is
    only in Kafka is not reported: it is ingested again by itself. Exit code 1 if something differs.

    Example: pulse restore check acme
    """
    differences = _find(tenant)
    if as_json:
        emit({"balanced": not differences, "findings": [asdict(difference) for difference in differences]})
    else:
        _show(differences)
    if differences:
        raise typer.Exit(FAILED)


@app.command("repair")
def repair(tenant: TenantOrAll = None, as_json: AsJson = False) -> None:
    """Repair what Kafka, the raw zone and the lake still have; repeat it to continue.

    Writes raw objects again from Kafka, points tables at metadata that is there, rebuilds the days that lack
    rows, and makes the newest commits of other engines current. A step that fails changes nothing, the others
    continue, and the exit code is 1. Then `pulse reconcile` proves what there is.

    Example: pulse restore repair acme
    """
    steps: list[repairs.Repaired] = []
    owners = _chosen(tenant)
    parallelism = settings.load_settings().spark.parallelism
    with interrupted.leaves(interrupted.REPAIR), spark.session() as session:
        for owner in owners:
            for step in repairs.repair(session, owner, parallelism=parallelism):
                steps.append(step)
                about = " ".join(str(part) for part in (step.tenant, step.subject, step.day) if part)
                remark(shown(f"{about}: {step.done}" + (f", failed: {step.failed}" if step.failed else "")))
    failed = sum(step.failed is not None for step in steps)
    if as_json:
        emit({"steps": [asdict(step) for step in steps], "failed": failed})
    elif not steps:
        say("Nothing can be repaired: see `pulse restore check`")
    else:
        say(f"{counted(len(steps) - failed, 'step')} done, {failed} failed")
    if failed:
        raise typer.Exit(FAILED)


@app.command("accept")
def accept(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Give up what still differs, without being asked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """End the hold on upkeep: from now on files that no table needs are removed again.

    Compares everything first, and asks before it gives up what still differs.

    Example: pulse restore accept
    """
    kinds = findings.Kind
    remaining = [difference for difference in _find(None) if difference.kind is not kinds.RESTORED]
    if remaining and not yes:
        if not as_json:
            _show(remaining)
        if not sys.stdin.isatty():
            fix = "Repair them with `pulse restore repair`, or give them up with --yes"
            raise UserError(f"differences that remain: {len(remaining):,}", fix=fix)
        typer.confirm("Give up what differs, permanently?", abort=True, err=True)
    store_mark.accept()
    losses = [asdict(difference) for difference in remaining]
    emit_or_say({"accepted": True, "given_up": losses}, "Upkeep continues", as_json)


def _chosen(tenant: str | None) -> list[Tenant]:
    return [registry.find_tenant(tenant)] if tenant else registry.list_tenants()


def _find(tenant: str | None) -> "list[findings.Finding]":
    chosen = _chosen(tenant)
    with working("comparing") as begins:
        differences = list(findings.find_restored())
        for number, owner in enumerate(chosen, 1):
            begins(f"comparing {owner.slug} ({number} of {len(chosen)})")
            differences.extend(findings.find_in(owner))
        if tenant is None:
            differences.extend(findings.find_unknown_tenants(chosen))
    return differences


def _show(differences: "list[findings.Finding]") -> None:
    if not differences:
        say("Postgres, the object store and Kafka agree")
        return
    for difference in differences:
        named = [f"tenant {difference.tenant}" if difference.tenant else "", difference.subject or ""]
        where = ", ".join(part for part in named if part)
        say(shown(f"{difference.kind}: {where + ': ' if where else ''}{difference.detail}"))
        say(shown(f"  {difference.fix}"))
    remark(
        "A restored Postgres also has keys that were revoked since the backup, and has forgotten erasures: "
        "revoke those keys and erase those persons again"
    )
