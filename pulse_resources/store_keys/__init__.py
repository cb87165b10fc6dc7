"""Keys of the object store: Pulse's own, and short-lived ones that tenants get."""
