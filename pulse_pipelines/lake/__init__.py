"""The lake as seen by a tenant's own engines: tables by friendly names, and vended keys to their files."""
