"""Entities: heads of their versions, indexes over them, and syncs that bring them."""
