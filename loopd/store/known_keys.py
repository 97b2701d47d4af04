"""Which idempotency keys were surely never used: most commands are new, and need not ask the database.

A Bloom filter: it never calls a used key new; it calls about one new key in four hundred possibly used, and
for that one the database is asked as before. Keys are added when they are handed in, before they are stored.
"""

from __future__ import annotations

from hashlib import blake2b

BITS = 1 << 24
"""Of one filter: 2 MiB, good for a million keys (a week of two commands a second)."""

KEYS = BITS // 16
FILTERS_LEAST = 8
"""So many are never too many."""

FRESH = 2
"""Newest filters that are kept when all is learned anew: keys in them may still be on the way to the journal."""
_MASK = BITS - 1
_SHIFTS = (0, 32, 64, 96)


class KnownKeys:
    """Grows by one filter for each million keys. What the journal has forgotten stays in it until it is learned anew.

    Attributes:
        complete: all keys of earlier boots are in it; until then nothing is surely new.
    """

    def __init__(self) -> None:
        self.complete = False
        self._filters = [bytearray(BITS // 8)]
        self._count = 0
        self._most = FILTERS_LEAST

    @property
    def filters(self) -> int:
        """How many there are."""
        return len(self._filters)

    def outgrown(self) -> bool:
        """Whether it is twice as large as when all keys were known: most of it is forgotten by now.

        Then it begins anew, and the keys that are stored have to be learned again.
        """
        if not self.complete or len(self._filters) <= self._most:
            return False
        self._filters = self._filters[-FRESH:]
        self._count = KEYS * len(self._filters)
        self.complete = False
        return True

    def learned(self) -> None:
        """All stored keys are in it."""
        self.complete = True
        self._most = max(FILTERS_LEAST, 2 * len(self._filters))

    def add(self, principal: str, key: str) -> None:
        """This key is used from now on."""
        if self._count >= KEYS * len(self._filters):
            self._filters.append(bytearray(BITS // 8))
        self._count += 1
        newest = self._filters[-1]
        for bit in _bits(principal, key):
            newest[bit >> 3] |= 1 << (bit & 7)

    def surely_new(self, principal: str, key: str) -> bool:
        """Whether nobody used this key."""
        if not self.complete:
            return False
        bits = _bits(principal, key)
        return not any(all(each[bit >> 3] >> (bit & 7) & 1 for bit in bits) for each in self._filters)


def _bits(principal: str, key: str) -> list[int]:
    digest = blake2b(f"{len(principal)} {principal}{key}".encode("utf-8", "surrogatepass"), digest_size=16)
    whole = int.from_bytes(digest.digest(), "little")
    return [whole >> shift & _MASK for shift in _SHIFTS]
