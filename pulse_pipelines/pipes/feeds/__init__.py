"""Feeds: services that serve entities and their changes as Pulse does, including another Pulse."""
