"""Errors that an endpoint tells in words, as if the model had said them. Pure.

Such an answer is no work and no repetition: it says nothing about the model. Only short answers without
tool calls are looked at, and only their beginning, so that an agent may talk about errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loopd_protocol.errors import Refused

ANSWER_CHARS = 600
PATTERNS: tuple[str, ...] = (
    r"we[^a-z]?re (?:currently )?experiencing (?:high|increased) (?:demand|load|traffic)",
    r"(?:api|http|request|internal server|stream(?:ing)?) error[:\s(]",
    r"(?:error|status)(?: code)?[:\s]+(?:4\d\d|5\d\d)\b",
    r"(?:4\d\d|5\d\d) (?:too many requests|unauthorized|internal server error|bad gateway|service unavailable|gateway time-?out)",
    r"ran into this error:",
    r"retrying \(?attempt",
    r"(?:rate limit|quota)\b.{0,40}\b(?:exceeded|reached)",
    r"(?:the )?(?:model|server|service) is (?:currently )?(?:overloaded|unavailable|at capacity)",
    r"<html|<!doctype html",
)
"""Beginnings of such answers, in any case of letters."""


class ErrorProse:
    """Recognises errors told in words.

    Raises:
        Refused: `invalid` when a pattern is no regular expression.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        for pattern in more:
            try:
                re.compile(pattern)
            except re.error as error:
                raise Refused(
                    "invalid", f"error_prose {pattern!r}: {error}; expected a regular expression"
                ) from error
        every = "|".join(f"(?:{pattern})" for pattern in (*PATTERNS, *more))
        self._pattern = re.compile(rf"\W{{0,8}}(?:{every})", re.IGNORECASE)

    def told(self, text: str) -> bool:
        """Whether this answer is an error told in words."""
        return len(text) <= ANSWER_CHARS and self._pattern.match(text) is not None
