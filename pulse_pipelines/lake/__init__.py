"""What a tenant's own engines see of the lake: tables by friendly names, and keys to their files."""
