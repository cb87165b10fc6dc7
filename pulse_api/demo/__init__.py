"""The demo: real flights and weather of 2013, sent through the whole pipeline and reconciled."""
