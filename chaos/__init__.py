"""Chaos tests: faults under load, and an oracle that checks that no event is lost or duplicated.

    load.py        seeded events of many tenants: valid, copies, late, and invalid ones
    sent.py        what was sent, with the broker's position of each message
    oracle.py      what became of it, read from tables, topics and objects, by three engines
    writer.py      a source of pipes, and who writes there
    piped.py       the oracle of pipes: datasets and sinks against the rows of the source
    batches.py     batches run by the job in processes that may be killed
    scenarios/     one module per kind of fault
    operators/     concurrent operator commands: schedules drawn by a seed, checked, shrunk when they fail
    harm/          attacks by tenants and strangers, and their effect on an honest neighbour
    report.py      the results, as a page of docs/

Run with `make chaos`, or `python -m chaos --help` for one scenario with a seed of your own; the
attacks with `make harm`.
"""
