"""The journal: append-only events with a hash chain, and the projections that are written with them."""

from loopd.store.memory import MemoryStore
from loopd.store.sqlite import SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
