"""Faults under load, and an oracle that knows what was sent: nothing may be lost, nothing may be doubled.

    load.py        seeded events of many tenants: valid, copies, late, and bad ones
    sent.py        what was sent, with the broker's word on where each message is
    oracle.py      what became of it, found from the outside: tables, topics and objects, by three engines
    batches.py     batches taken through the job in processes that may be killed
    scenarios/     one module per kind of fault
    operators/     commands of operators side by side: drawn as schedules, judged, made smaller when they fail
    harm/          attacks by tenants and strangers, and what an honest neighbour notices of them
    report.py      what was done and found, as a page of docs/

Run with `make chaos`, or `python -m chaos --help` for one scenario with a seed of your own; the
attacks with `make harm`.
"""
