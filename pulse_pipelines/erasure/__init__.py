"""Erasure: a person's events removed from every store, with a receipt that can be checked.

`everywhere` erases from all datasets, `run` from one. The package imports nothing itself: a process that
erases from one table of a tenant's own begins in little more than half of the time.
"""
