"""loopd: a daemon that keeps unattended agents honest."""

__version__ = "0.1.0"
