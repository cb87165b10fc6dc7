"""Pipes: an asset per pipe name, and the sensor that launches their runs."""
