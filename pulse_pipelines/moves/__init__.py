"""Moves: migrations of a dataset to a newer schema, at once, or by a run that rewrites its data files.

A move is requested in `evolve`, recorded in `record`, launched by a sensor, and executed by an attempt in
`run`, which imports Spark: code that only requests moves does not need it.
"""

from pulse_pipelines.moves.evolve import ask
from pulse_pipelines.moves.record import Move, MoveState, find, of_dataset

__all__ = ["Move", "MoveState", "ask", "find", "of_dataset"]
