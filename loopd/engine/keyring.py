"""Tokens of people and programs: made here, checked here, never stored as they are.

    lpd_<kid>_<43 characters>      the kid names the row, the rest is 256 random bits

Only the SHA-256 is kept. That is enough without salt or stretching: nobody guesses 256 bits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping

import msgspec

from loopd.core.access import Caller
from loopd.core.writes import HouseRow
from loopd.engine.ports import Clock, Store
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

PREFIX = "lpd_"
SECRET_CHARS = 43
TOKENS_MAX = 10_000
FORGET_MS = 31 * 86_400_000
"""Revoked and expired tokens are listed for so long."""
_NOBODY = bytes(32)


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a token.

    Attributes:
        sha256: of the whole token, hexadecimal.
        revoked_ms: from when on it is worth nothing; may be to come, after a rotation.
    """

    kid: str
    sha256: str
    scopes: tuple[str, ...]
    source: str = "human"
    labels: dict[str, str] = {}
    note: str = ""
    created_ms: int = 0
    by: str = ""
    expires_ms: int | None = None
    revoked_ms: int | None = None
    replaces: str = ""

    def ends_ms(self) -> int | None:
        """From when on it is worth nothing, or None."""
        ends = [moment for moment in (self.expires_ms, self.revoked_ms) if moment is not None]
        return min(ends) if ends else None

    def row(self) -> HouseRow:
        """As the store keeps it."""
        return HouseRow(kind="token", id=self.kid, body=msgspec.json.encode(self))


class Keyring:
    """All tokens, in memory; `listeners` are called with the kid of each one that is revoked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self._used: dict[str, int] = {}
        self._callers: dict[str, Caller] = {}
        self.listeners: list[Callable[[str], None]] = []

    async def load(self, store: Store) -> None:
        """Read them from the store."""
        rows = await store.house("token")
        self._keys = {kid: msgspec.json.decode(body, type=Key) for kid, body in rows.items()}

    @property
    def configured(self) -> bool:
        """Whether any token is worth something now."""
        return any(self._worth(key) for key in self._keys.values())

    def listed(self) -> list[tuple[Key, int | None, bool]]:
        """Each token with the moment of its last use in this boot and whether it is worth something."""
        now = self._clock.now_ms()
        kept = [
            key for key in self._keys.values() if (ends := key.ends_ms()) is None or ends + FORGET_MS > now
        ]
        kept.sort(key=lambda key: (key.created_ms, key.kid))
        return [(key, self._used.get(key.kid), self._worth(key)) for key in kept]

    def authenticate(self, token: str) -> Caller:
        """Who holds this token. Takes the same time for any wrong one of the same length.

        Raises:
            Refused: `unauthenticated`; the message does not tell an unknown token from a revoked one.
        """
        kid = token[len(PREFIX) : -SECRET_CHARS - 1]
        key = self._keys.get(kid)
        known = _NOBODY if key is None else bytes.fromhex(key.sha256)
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        good = hmac.compare_digest(digest, known)
        if key is None or not good or not self._worth(key):
            raise Refused("unauthenticated", "this token is not known here, has expired or was revoked")
        self._used[kid] = self._clock.now_ms()
        return self._caller(key)

    def caller_of(self, kid: str) -> Caller:
        """The holder of a token that was shown before: cookies and tickets stand for it.

        Raises:
            Refused: `unauthenticated`: it is worth nothing any more.
        """
        key = self._keys.get(kid)
        if key is None or not self._worth(key):
            raise Refused("unauthenticated", "the token behind this has expired or was revoked")
        return self._caller(key)

    def named(self, token: str) -> str:
        """The kid that a token carries, if there is or was one of that name; else nothing."""
        kid = token[len(PREFIX) : -SECRET_CHARS - 1]
        return kid if token.startswith(PREFIX) and kid in self._keys else ""

    def ancestors(self, kid: str) -> set[str]:
        """The tokens that this one was rotated from, itself included."""
        found: set[str] = set()
        while kid and kid not in found:
            found.add(kid)
            key = self._keys.get(kid)
            kid = "" if key is None else key.replaces
        return found

    def valid(self, kid: str) -> bool:
        """Whether the token is still worth something."""
        key = self._keys.get(kid)
        return key is not None and self._worth(key)

    # -- changing: plan first, then write, then tell -----------------------------------------------

    def make(
        self,
        *,
        scopes: tuple[str, ...],
        source: str,
        labels: Mapping[str, str],
        note: str,
        expires_ms: int | None,
        by: str,
        replaces: str = "",
    ) -> tuple[str, Key]:
        """A new token and its row; it is worth nothing until `keep`.

        Raises:
            Refused: `overloaded` when there are too many, `invalid` for an expiry in the past.
        """
        now = self._clock.now_ms()
        if sum(1 for key in self._keys.values() if self._worth(key)) >= TOKENS_MAX:
            raise Refused("overloaded", f"{TOKENS_MAX} tokens exist; revoke one first")
        if expires_ms is not None and expires_ms <= now:
            raise Refused("invalid", f"expires_ms is {expires_ms}; it is {now} now", path="$.expires_ms")
        kid = secrets.token_hex(5)
        while kid in self._keys:
            kid = secrets.token_hex(5)
        token = f"{PREFIX}{kid}_{secrets.token_urlsafe(32)}"
        key = Key(
            kid=kid,
            sha256=hashlib.sha256(token.encode()).hexdigest(),
            scopes=tuple(sorted(set(scopes))),
            source=source,
            labels=dict(labels),
            note=note,
            created_ms=now,
            by=by,
            expires_ms=expires_ms,
            replaces=replaces,
        )
        return token, key

    def find(self, kid: str) -> Key:
        """A token that is worth something.

        Raises:
            Refused: `not_found`.
        """
        key = self._keys.get(kid)
        if key is None or not self._worth(key):
            raise Refused("not_found", f"no token {kid!r} is in force; `loopctl token list`", path="$.kid")
        return key

    def stands(self, key: Key) -> bool:
        """Whether a token is still as it was found."""
        return self._keys.get(key.kid) is key

    def keep(self, key: Key) -> None:
        """The row is durable: it counts from now on. Listeners hear of one that is worth nothing now."""
        self._keys[key.kid] = key
        self._callers.pop(key.kid, None)
        if not self._worth(key):
            for listener in list(self.listeners):
                listener(key.kid)

    def _worth(self, key: Key) -> bool:
        ends = key.ends_ms()
        return ends is None or ends > self._clock.now_ms()

    def _caller(self, key: Key) -> Caller:
        caller = self._callers.get(key.kid)
        if caller is None:
            source = Source.CHANNEL if key.source == "channel" else Source.HUMAN
            caller = self._callers[key.kid] = Caller(
                principal=f"token:{key.kid}",
                scopes=frozenset(key.scopes),
                source=source,
                labels=key.labels,
                kid=key.kid,
            )
        return caller
