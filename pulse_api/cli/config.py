"""`pulse config`: every setting in force, and its source."""

from typing import Annotated

import typer

from pulse_api.cli.output import AsJson, emit, show_table
from pulse_resources import errors
from pulse_resources.settings import setting_sources

app = typer.Typer()


@app.command("config")
def show_config(
    section: Annotated[
        str | None, typer.Argument(help="Show this section only: postgres, kafka, ingest, ...")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every setting: its environment variable, value and source. Secrets are hidden.

    Example: pulse config ingest
    """
    values = setting_sources.in_force()
    if section is not None:
        sections = {value.name.split("_", 1)[1].partition("__")[0].lower() for value in values}
        if section.lower() not in sections:
            advice = f"There are {', '.join(sorted(sections))}"
            raise errors.NotFound(
                "no such section", fix=errors.meant(section, sections, advice), section=section
            )
        values = [value for value in values if value.name.startswith(f"PULSE_{section.upper()}__")]
    if changed:
        values = [value for value in values if value.source != "default"]
    if as_json:
        emit(values)
        return
    rows = ((value.name, value.value, value.source) for value in values)
    show_table(("setting", "value", "from"), rows, empty="Every setting is the default")
