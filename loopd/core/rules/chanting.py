"""chanting: inside one stream the model says the same words over and over.

The judge of a stream is fed text as it comes; every 4,000 characters outside code blocks and tables it
asks how many of the 8-word sequences were never said before in this stream. A few hashes per word,
nothing is kept of the text itself.
"""

from __future__ import annotations

import re
import zlib
from typing import Annotated

import msgspec

from loopd.core.rules.findings import Finding, loop_identity
from loopd.core.rules.parameters import Parameters

ID = "chanting"

_WORD = re.compile(r"\S+")
_MOST_GRAMS = 65_536


class ChantingParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of chanting.

    Attributes:
        window_chars: characters after which novelty is measured, and again after as many more.
        novelty_permille: it fires when fewer of the sequences than this are new, in thousandths.
        words: length of a sequence.
    """

    enabled: bool = False
    window_chars: Annotated[int, msgspec.Meta(ge=500, le=100_000)] = 4_000
    novelty_permille: Annotated[int, msgspec.Meta(ge=1, le=500)] = 20
    words: Annotated[int, msgspec.Meta(ge=2, le=32)] = 8


class Chanting:
    """Judges one stream of one step. Not part of a session's state: a stream does not survive a crash."""

    def __init__(self, parameters: ChantingParameters) -> None:
        self._parameters = parameters
        self._rest = ""
        self._fenced = False
        self._last: list[int] = []
        self._seen: set[int] = set()
        self._chars = self._grams = self._new = self._total = 0
        self._fired = False

    def feed(self, delta: str) -> Finding | None:
        """Take more text of the stream; a finding (once) means: cancel it and retry once."""
        if not self._parameters.on or self._fired or not delta:
            return None
        self._total += len(delta)
        self._rest += delta
        if "\n" not in delta and len(self._rest) < 400:
            return None
        cut = max(self._rest.rfind("\n"), self._rest.rfind(" ") if len(self._rest) >= 400 else -1)
        if cut < 0:
            cut = len(self._rest) if len(self._rest) >= 4_000 else -1
        if cut < 0:
            return None
        ready, self._rest = self._rest[: cut + 1], self._rest[cut + 1 :]
        for line in ready.splitlines():
            found = self._line(line)
            if found is not None:
                return found
        return None

    def _line(self, line: str) -> Finding | None:
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            self._fenced = not self._fenced
            return None
        if self._fenced or stripped.startswith("|") or stripped.count("\t") > 1:
            return None
        words = _WORD.findall(stripped)
        if len(words) == 1 and len(stripped) > 60:
            words = [stripped[at : at + 4] for at in range(0, len(stripped), 4)]
        for word in words:
            self._last.append(zlib.crc32(word.lower().encode("utf-8", "surrogatepass")))
            self._chars += len(word) + 1
            if len(self._last) < self._parameters.words:
                continue
            gram = hash(tuple(self._last))
            del self._last[0]
            self._grams += 1
            if gram not in self._seen:
                self._new += 1
                if len(self._seen) < _MOST_GRAMS:
                    self._seen.add(gram)
            if self._chars >= self._parameters.window_chars:
                found = self._judge(stripped)
                if found is not None:
                    return found
        return None

    def _judge(self, line: str) -> Finding | None:
        novelty = 1_000 * self._new // max(1, self._grams)
        self._chars = self._grams = self._new = 0
        if novelty >= self._parameters.novelty_permille:
            return None
        self._fired = True
        return Finding(
            rule=ID,
            verdict="warn",
            level="hard",
            score=novelty,
            threshold=self._parameters.novelty_permille,
            unit="permille",
            window=self._parameters.window_chars,
            evidence=(
                (
                    f"{novelty} of 1000 sequences of {self._parameters.words} words were new in the last "
                    f"{self._parameters.window_chars} characters of {self._total}"
                ),
                f"last line: {line[:120]}",
            ),
            loop_id=loop_identity(ID, ("stream",)),
            shadow=self._parameters.mode == "shadow",
        )
