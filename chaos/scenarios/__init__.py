"""Kinds of fault, one module each: each does harm under load, and gives back what must hold then."""
