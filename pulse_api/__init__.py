"""The front doors: the `pulse` command line (and, later, HTTP)."""
