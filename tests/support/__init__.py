"""What several tests share: the stack, tenants with events, the API, tables as they are."""
