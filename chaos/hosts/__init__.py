"""Pulse over hosts that share nothing but a network, faults of hosts and of links, and the verdict."""
