"""Sinks: datasets of entities, copied to tables of other Postgres databases and to services by HTTP.

A run reads the log of its dataset from where the sink is, batch by batch. What counts is what the sink has:
a database keeps the position beside the rows, in the same transaction; of a service Pulse keeps what it has
answered for. Nothing lands in Pulse.
"""
