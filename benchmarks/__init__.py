"""Benchmarks of Pulse against its goals; each has a command, and a ratio where there is a peer."""
