"""One file per outside system that Pulse talks to; imports nothing from the other packages."""
