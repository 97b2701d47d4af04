"""`loopd demo`: a real daemon, a real incident in fast time, and the outcome asserted."""

from loopd.demo.main import main

__all__ = ["main"]
