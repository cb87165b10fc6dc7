"""Attacks by one tenant or by strangers, and their cost for an honest neighbour.

attack.py      description of an attack, an attacker's knowledge, and ways to send load
attacks/       one module per kind of attack
wire.py        raw HTTP for attackers: arbitrary bytes out, responses as short texts
neighbour.py   the neighbour, in a process of its own: collects, previews, checks readiness
memory.py      peak memory of each of Pulse's processes
people.py      the tenants involved, their keys, and what becomes of the neighbour's events
measure.py     measurements of the neighbour without and beside an attack
page.py        the latest result of each attack, as a page of docs/
command.py     `python -m chaos harm`
"""
