"""Rolling upgrades: two versions of Pulse side by side on the newer one's schema, under load."""
