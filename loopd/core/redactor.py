"""Redaction profiles: what of a record may be handed on. Pure and deterministic.

`none` changes nothing; `secrets` replaces what looks like a secret, in texts, arguments and tool output;
`content` leaves only metadata: that it happened, when, by whose leave, what it cost.

The same secret becomes the same placeholder, `[redacted:KIND:DIGEST]`, so that a reader still sees that two
places held the same one. The digest is keyed: whoever lacks the key cannot test guesses against it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from loopd.core.content import CONTENT
from loopd.core.secret_shapes import LEAST_CHARS, OPEN, is_telling, replaced
from loopd_protocol.errors import Refused

PROFILES = ("none", "secrets", "content")
PIECE_CHARS = 4_096
"""Patterns of users see a long line in pieces of this length, so that a slow one stays bounded. Each piece begins in
the middle of the one before it: a secret of up to half the length is whole in one of them."""

PATTERN_CHARS = 500
PATTERNS_MAX = 50
_DEEPEST = 64
_PLACED = re.compile(r"(\[redacted:[a-z]{1,12}:[0-9a-f]{8}\])")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_UNBOUNDED_MAX = 2


class Redactor:
    """Applies one profile.

    Args:
        profile: one of `PROFILES`.
        key: of the placeholders' digests.
        patterns: regular expressions of a house's own secrets; the group `secret`, if there is one, is replaced,
            else all that matched.

    Raises:
        Refused: `invalid` for an unknown profile, or a pattern that is none or may be slow.
    """

    def __init__(self, profile: str = "none", *, key: bytes = b"", patterns: Sequence[str] = ()) -> None:
        if profile not in PROFILES:
            raise Refused(
                "invalid", f"redaction profile is {profile!r}; expected one of {', '.join(PROFILES)}"
            )
        self.profile = profile
        self._key = key
        self._own = tuple(checked(pattern) for pattern in patterns)
        if len(self._own) > PATTERNS_MAX:
            raise Refused("invalid", f"{len(self._own)} patterns; expected at most {PATTERNS_MAX}")

    @property
    def changes(self) -> bool:
        """Whether the profile changes anything at all."""
        return self.profile != "none"

    def placeholder(self, kind: str, secret: str) -> str:
        """What stands in the place of a secret."""
        digest = hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), sha256).hexdigest()[:8]
        return f"{OPEN}{kind}:{digest}]"

    def text(self, text: str) -> str:
        """A text without secrets."""
        if self.profile == "none":
            return text
        for pattern in self._own:
            text = self._by_own(pattern, text)
        return replaced(text, self.placeholder)

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """A JSON value without secrets; the value of a field with a telling name goes as a whole."""
        if isinstance(value, str):
            if is_telling(name) and len(value) >= LEAST_CHARS and not value.startswith(OPEN):
                return self.placeholder("named", value)
            return self.text(value)
        if depth > _DEEPEST:
            return None
        if isinstance(value, dict):
            return {self.text(key): self.value(each, key, depth + 1) for key, each in value.items()}
        if isinstance(value, list):
            return [self.value(each, name, depth + 1) for each in value]
        return value

    def body(self, kind: str, body: bytes) -> bytes | None:
        """The payload of an event as it may be handed on; None when that is the payload itself."""
        if self.profile == "none":
            return None
        decoded = msgspec.json.decode(body)
        if self.profile == "content":
            content = CONTENT.get(kind, {})
            made = {k: content.get(k, value) for k, value in decoded.items() if k != "given"}
        else:
            made = self.value(decoded)
        again = msgspec.json.encode(made)
        return None if made == decoded else again

    def blob(self, data: bytes, *, metadata: bool) -> bytes | None:
        """Content as it may be handed on, possibly unchanged; None when it may not.

        Args:
            data: the whole content.
            metadata: it only names other content, by digest.
        """
        if self.profile == "none" or metadata:
            return data
        if self.profile == "content":
            return None
        try:
            decoded = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            decoded = None
        if isinstance(decoded, dict | list):
            made = self.value(decoded)
            return data if made == decoded else msgspec.json.encode(made)
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def _by_own(self, pattern: re.Pattern[str], text: str) -> str:
        def stand(found: re.Match[str]) -> str:
            if "secret" in pattern.groupindex:
                secret = found["secret"] or ""
                return found[0].replace(secret, self.placeholder("custom", secret)) if secret else found[0]
            return self.placeholder("custom", found[0]) if found[0] else ""

        made: list[str] = []
        for line in text.split("\n"):
            # What was replaced once stays as it is: every other part is a placeholder.
            parts = _PLACED.split(line)
            for place in range(0, len(parts), 2):
                parts[place] = _by_pieces(pattern, stand, parts[place])
            made.append("".join(parts))
        return "\n".join(made)


def _by_pieces(pattern: re.Pattern[str], stand: Callable[[re.Match[str]], str], text: str) -> str:
    """The text with each match replaced that begins in the first half of a piece, or in the last piece."""
    made: list[str] = []
    copied = begin = 0
    while begin < len(text):
        last = begin + PIECE_CHARS >= len(text)
        following = len(text) if last else begin + PIECE_CHARS // 2
        for found in pattern.finditer(text, max(begin, copied), begin + PIECE_CHARS):
            if found.start() >= following and not last:
                break  # the next piece sees all of it
            made += text[copied : found.start()], stand(found)
            copied = found.end()
        begin = following
    made.append(text[copied:])
    return "".join(made)


def checked(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a user, if it cannot be very slow.

    Raises:
        Refused: `invalid`: too long, no regular expression, repetition inside an unbounded repetition, a
            reference back, or more than two unbounded repetitions.
    """
    if len(pattern) > PATTERN_CHARS:
        raise Refused("invalid", f"a pattern of {len(pattern)} characters; expected at most {PATTERN_CHARS}")
    try:
        compiled = re.compile(pattern)
        tree = re._parser.parse(pattern)  # type: ignore[attr-defined]  # noqa: SLF001  (re has no other view)
    except (re.error, RecursionError, OverflowError) as error:
        raise Refused("invalid", f"pattern {pattern!r}: {error}") from error
    unbounded = _unbounded(tree, pattern, inside=False)
    if unbounded > _UNBOUNDED_MAX:
        raise Refused(
            "invalid",
            f"pattern {pattern!r} has {unbounded} unbounded repetitions; expected at most {_UNBOUNDED_MAX}",
        )
    return compiled


def _unbounded(tree: Any, pattern: str, *, inside: bool) -> int:
    count = 0
    for operator, argument in tree:
        name = str(operator)
        if name.startswith("GROUPREF"):
            raise Refused("invalid", f"pattern {pattern!r} refers back to a group; that may be slow")
        if name in _REPEATS:
            _, most, inner = argument
            endless = int(most) > 1_000
            if inside and int(most) > 1:
                raise Refused("invalid", f"pattern {pattern!r} repeats a repetition; that may be slow")
            count += endless + _unbounded(inner, pattern, inside=inside or endless)
        else:
            count += _inner(argument, pattern, inside=inside)
    return count


def _inner(argument: Any, pattern: str, *, inside: bool) -> int:
    if hasattr(argument, "data"):
        return _unbounded(argument, pattern, inside=inside)
    if isinstance(argument, tuple | list):
        return sum(_inner(each, pattern, inside=inside) for each in argument)
    return 0
