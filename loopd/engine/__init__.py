"""The engine: hosts sessions, interprets what the core decides, keeps time."""
