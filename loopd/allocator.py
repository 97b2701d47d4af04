"""What the C library does with memory that is free; a no-op where it is not glibc.

Contexts, rows and frames are strings of some tens of kilobytes. glibc keeps what is freed between others that are
still in use, in as many as 8 arenas for each processor, and gives back by itself only what lies at the end.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

ARENAS = 2
"""One for the event loop, one for all other threads: what one thread frees another can take."""

_M_ARENA_MAX = -8


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:  # musl
        return None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


def limit_arenas() -> bool:
    """Let all threads share `ARENAS` arenas. Call it before there are threads; false where nothing is changed."""
    library = _glibc()
    return library is not None and bool(library.mallopt(_M_ARENA_MAX, ARENAS))


def give_back() -> bool:
    """Give free pages back to the system, wherever they lie; a few milliseconds, with the GIL released.

    Returns:
        Whether there were any.
    """
    library = _glibc()
    trim: Callable[[int], int] | None = None if library is None else library.malloc_trim
    return trim is not None and bool(trim(0))
