"""Reading what landed: preview, reconciliation, and the facts behind the asset checks."""
