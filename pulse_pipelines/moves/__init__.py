"""Moves: a dataset follows a newer schema, at once, or by a run that writes its data files again.

A move is asked for here (`ask`), recorded (`record`), launched by a sensor, and carried out in an attempt of
a run (`run`), which imports what works with Spark: whoever asks need not.
"""

from pulse_pipelines.moves.ask import ask
from pulse_pipelines.moves.record import Move, State, find, of_dataset

__all__ = ["Move", "State", "ask", "find", "of_dataset"]
