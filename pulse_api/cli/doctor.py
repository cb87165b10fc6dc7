"""`pulse doctor`: checks of every service that the settings name, with fixes for those that fail."""

from typing import Annotated

import typer

from pulse_api.cli import stack_check
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, say, show_table, working
from pulse_pipelines.monitoring import doctor
from pulse_resources.home import pulse_home
from pulse_resources.local import provision
from pulse_resources.local.layout import Layout

app = typer.Typer()


@app.command("doctor")
def examine(
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show the checks that passed.")] = False,
) -> None:
    """Check addresses, versions, rights, clocks, topics and disk of all services that the settings name.

    Nothing is changed, apart from a small object that is written to the bucket and removed. Exit code 1 if
    something is wrong.

    Example: pulse doctor --all
    """
    layout = Layout(pulse_home())
    if not layout.settings_file.exists() and not provision.external():
        remark(f"No stack has been started in {layout.home}: the checks use the default addresses.")
        remark(
            f"Start one with pulse up, name the folder of one ({stack_check.elsewhere()}), or see "
            "docs/own-services.md."
        )
    findings: list[doctor.Finding] = []
    with working("checking") as begins:
        for service in doctor.SERVICES:
            begins(f"checking {service}")
            findings.extend(doctor.examine(service))
    wrong = [finding for finding in findings if not finding.ok]
    if as_json:
        emit({"healthy": not wrong, "findings": findings})
    else:
        shown = findings if everything else wrong
        rows = ((f.service, f.check, f.ok, f.found, None if f.ok else f.fix) for f in shown)
        columns, spare = ("service", "check", "ok", "found", "what to do"), ("ok",)
        if shown:
            show_table(columns, rows, empty="", spare=() if everything else spare)
        say(f"{len(findings) - len(wrong)} of {len(findings)} checks passed")
    if wrong:
        raise typer.Exit(FAILED)
