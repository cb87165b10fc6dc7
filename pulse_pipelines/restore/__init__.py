"""Restores: Postgres, the object store and Kafka compared after one of them came back from a backup.

`findings` names what differs, `repair` mends it from what the other two still have. Reconciliation
(`monitoring.reconcile`) then proves that every event is accounted for.
"""
