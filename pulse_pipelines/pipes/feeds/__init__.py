"""Feeds: services that tell entities and their changes as Pulse itself does, another Pulse among them."""
