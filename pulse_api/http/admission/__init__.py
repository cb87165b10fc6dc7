"""Admission control: connections, rates and turns, so that no caller stops others."""
