"""The front doors: the HTTP API, the `pulse` command line, a Python client, and the demo."""
