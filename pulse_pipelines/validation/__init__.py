"""Validation of received events: envelope, schema, and the CPU time that it may take."""
