"""Manifests: a tenant's set-up in a file, compared with what exists, and carried out.

`document` parses the file, `plan` compares it with the tenant and makes the steps, `steps` carries them out.
"""
