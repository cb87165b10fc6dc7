"""Operators and tenants at once: random commands beside batches, from several processes, killed and repeated.

events.py      events of which each schema version's verdict is known when they are made
schedule.py    what is done, as data: printed, kept in a file, made smaller
draw.py        a schedule drawn by a seed
acts.py        what the harness does itself: it sends events, loses topics, stops the broker
commands.py    what a process that may be killed does: one operator command, or batches
processes.py   such processes: started, paused, killed, and what they answered
cast.py        the tenants; door.py: the HTTP API that one of them uses
world.py       what the harness knows: messages and where they are, losses, erasures
rounds.py      ... and which schema versions can have held when
episode.py     a schedule carried out; closing.py: all of it brought to its end
evidence.py    what there is of a tenant afterwards, read from the outside
judge.py       what of it is wrong; gone.py: after erasures; going_on.py: with rollups and upkeep
shrink.py      the smallest part of a schedule that still goes wrong
"""
