"""Pipes: an asset per name of pipe, and the sensor that launches their runs."""
