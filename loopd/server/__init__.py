"""Doors of the daemon: the control socket and the HTTP side."""
