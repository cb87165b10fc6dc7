"""`pulse apply`: a tenant's set-up from a manifest."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pulse_api.cli.arguments import read
from pulse_api.cli.guard import FAILED
from pulse_api.cli.output import AsJson, emit, remark, say
from pulse_pipelines.manifest import document, plan as planning, steps as manifest_steps
from pulse_resources.errors import UserError

app = typer.Typer()

MAX_FILE_BYTES = 4 * 1024 * 1024
_SIGNS = {"create": "+", "change": "~", "remove": "-", "conflict": "!"}
"""What stands before a step, by its action."""
_WAITS = "Another command applies a manifest of {}: waiting until it has ended."


@app.command("apply")
def apply_manifest(
    file: Annotated[
        Path,
        typer.Option(
            "--file", "-f", help="The manifest, in YAML or JSON; - for standard input.", allow_dash=True
        ),
    ],
    only_plan: Annotated[
        bool,
        typer.Option("--plan", help="Show the steps and change nothing. Exit code 1 if there are any."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Also delete datasets and pipes, and revoke keys, that the manifest does not name.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set a tenant up as a manifest says: its limits, schemas, datasets, keys and pipes.

    Only what differs is done, so a repeated command changes nothing. A difference that cannot be changed is a
    conflict, and nothing is done at all. New keys are printed once. Paths in the manifest are relative to it.

    Example: pulse apply -f docs/examples/acme.yaml --plan
    """
    content = read(file, "manifest")
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"the manifest has more than {MAX_FILE_BYTES:,} bytes", fix="Name schemas by a path")
    manifest = document.parse(content, lambda path: _read_named(file.parent / path))
    if only_plan:
        steps = planning.plan(manifest, prune=prune)
        _show_plan(manifest.tenant, steps, as_json)
        if any(step.changes for step in steps):
            raise typer.Exit(FAILED)
        return
    confirmed: set[tuple[str, str, str]] = set()
    while removals := _apply(manifest, prune, None if yes else confirmed, as_json):
        # Others need not wait for the answer. What they change meanwhile, the next plan contains.
        _confirm(manifest.tenant, removals)
        confirmed.update(map(_named, removals))


def _apply(
    manifest: document.Manifest, prune: bool, confirmed: set[tuple[str, str, str]] | None, as_json: bool
) -> "list[manifest_steps.Step]":
    """Plan and carry out, while no other command applies a manifest of this tenant.

    Args:
        confirmed: what may be removed; None: everything.

    Returns the removals that need a confirmation first; if there are any, nothing was done.
    """
    with planning.exclusively(manifest.tenant, lambda: remark(_WAITS.format(manifest.tenant))):
        steps = planning.plan(manifest, prune=prune)
        planning.refuse_conflicts(manifest, steps)
        removals = [step for step in steps if step.action is manifest_steps.Action.REMOVE]
        if confirmed is not None and not confirmed.issuperset(map(_named, removals)):
            return removals
        done: list[dict[str, object]] = []
        try:
            for step, outcome in planning.carry_out(manifest, steps):
                done.append(_as_document(step, outcome))
                if not as_json:
                    _show_done(step, outcome)
        finally:
            if as_json:  # after an error, too: a key is shown once
                emit({"tenant": manifest.tenant, "steps": done})
    if not as_json and not done:
        say(f"tenant {manifest.tenant} is as the manifest says: {len(steps)} checked, nothing to do")
    return []


def _named(step: "manifest_steps.Step") -> tuple[str, str, str]:
    return step.kind, step.name, step.detail


def _read_named(path: Path) -> bytes:
    """The content of a file that a manifest names. Raises UserError: it is not a file, or is too large."""
    if not path.is_file():  # a device or a pipe may never end
        raise UserError("the manifest names a file that does not exist", file=str(path))
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"the file has more than {MAX_FILE_BYTES:,} bytes", file=str(path))
    return read(path, "file")


def _confirm(tenant: str, removals: "Sequence[manifest_steps.Step]") -> None:
    if not sys.stdin.isatty():
        raise UserError("removing needs a confirmation", fix="Check with --plan, then add --yes")
    for step in removals:
        say(str(step))
    typer.confirm(f"Remove these {len(removals)} from {tenant}?", abort=True, err=True)


def _show_plan(tenant: str, steps: "Sequence[manifest_steps.Step]", as_json: bool) -> None:
    pending = [step for step in steps if step.changes]
    if as_json:
        nothing_yet = manifest_steps.Outcome()
        emit({"tenant": tenant, "steps": [_as_document(step, nothing_yet) for step in pending]})
        return
    for step in pending:
        detail = f": {step.detail}" if step.detail else ""
        say(f"{_SIGNS[step.action]} {step.kind} {step.name}{detail}")
    counts = Counter(step.action for step in steps)
    conflict = manifest_steps.Action.CONFLICT
    words = {action: "in" if action == conflict else "to" for action in manifest_steps.Action}
    remark(", ".join(f"{counts[action]} {words[action]} {action}" for action in words if counts[action]))


def _show_done(step: "manifest_steps.Step", outcome: "manifest_steps.Outcome") -> None:
    say(f"{_SIGNS[step.action]} {step.kind} {step.name}")
    if outcome.key is not None:
        say(f"  {outcome.key}")
        remark("The key is shown once.")
    elif outcome.remark and outcome.remark != step.name:
        remark(f"  {outcome.remark}")


def _as_document(step: "manifest_steps.Step", outcome: "manifest_steps.Outcome") -> dict[str, object]:
    members = {
        "action": step.action,
        "kind": step.kind,
        "name": step.name,
        "detail": step.detail,
        "remark": outcome.remark,
        "key": outcome.key,
    }
    return {name: value for name, value in members.items() if value}
