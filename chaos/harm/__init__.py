"""Attacks by one tenant, or by nobody, beside an honest neighbour: what each costs him, and what it gets.

attack.py      what an attack is, what an attacker knows, and the ways to send much
attacks/       one module per kind of attack
wire.py        HTTP as an attacker needs it: any bytes out, and what came back in words
neighbour.py   the neighbour, in a process of its own: collects, previews, asks whether Pulse is ready
memory.py      the peak of each of Pulse's processes
people.py      the tenants that take part, their keys, and what becomes of the neighbour's events
measure.py     the neighbour without an attack and beside it
page.py        the last result of each attack, as a page of docs/
command.py     `python -m chaos harm`
"""
