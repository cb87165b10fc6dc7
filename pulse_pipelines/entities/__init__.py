"""Entities: heads of their versions, indexes over them, and syncs of them."""
