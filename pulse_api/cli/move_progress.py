"""Progress and list of a dataset's moves that need a run."""

import time
from collections.abc import Sequence

from rich.console import Console

from pulse_api.cli import interrupted
from pulse_api.cli.output import remark, show_table
from pulse_api.demo import run
from pulse_pipelines import moves
from pulse_pipelines.domain.tenant import Tenant

POLL_S = 0.5


def follow(owner: Tenant, move: "moves.Move") -> "moves.Move":
    """Show the progress of a move until it ends; returns the ended move.

    Ctrl-C ends the command, not the move; the command to follow it again is printed.
    """
    console = Console(stderr=True)
    with interrupted.leaves(interrupted.MOVE, tenant=owner.slug, dataset=move.slug):
        if not console.is_terminal:
            remark(f"The move {move.move_id} rewrites the data files of {move.slug}.")
        with run.progress(console) as bar:
            task = bar.add_task(move.slug, total=None)
            while not (current := moves.find(owner, move.move_id)).ended:
                description = f"{move.slug}: {_doing(current)}"
                bar.update(task, description=description, total=current.files, completed=current.files_done)
                time.sleep(POLL_S)
    return current


def _doing(move: "moves.Move") -> str:
    if move.state == moves.MoveState.RUNNING:
        return "rewriting files" if move.files else "starting"
    return f"attempt {move.attempt} follows" if move.attempt > 1 else "waiting for its run"


def show(dataset_moves: "Sequence[moves.Move]") -> None:
    """Print a table of moves."""
    rows = (
        (
            move.asked_at,
            move.move_id,
            move.schema_uri,
            move.state,
            "" if move.files is None else f"{move.files_done:,} of {move.files:,}",
            move.attempt,
            move.ended_at,
            move.error,
        )
        for move in dataset_moves
    )
    columns = ("asked", "move", "to", "state", "files", "attempt", "ended", "error")
    empty = "No move of this dataset has needed a run"
    show_table(columns, rows, empty=empty, spare=("attempt", "asked", "move"))
