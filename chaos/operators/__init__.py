"""Operators and tenants at once: random commands beside batches, in several processes, killed and repeated.

events.py      events with a known verdict for each schema version
schedule.py    what is done, as data: printed, stored in a file, shrunk
draw.py        a schedule drawn by a seed
acts.py        actions of the harness: send events, lose topics, stop the broker
commands.py    operator commands and batches in a process that may be killed
processes.py   such processes: started, paused, killed, and their answers
cast.py        the tenants; http_api.py: the HTTP API that one of them uses
world.py       the knowledge of the harness: messages and positions, losses, erasures
rounds.py      ... and the possible schema versions at each moment
episode.py     a schedule run to its end; closing.py: everything begun completed
evidence.py    a tenant's data afterwards, read from the outside
invariants.py  violated invariants; erasures.py: after erasures; liveness.py: of rollups and upkeep
shrink.py      the smallest part of a schedule that still fails
"""
