"""How alike two texts are: digit-masked words, or three characters at a time where there are no spaces.

A text becomes a sketch: the smallest 64 of the hashes of its words, packed. Up to 64 different words the
Jaccard index of two sketches is exact; of longer texts it is an estimate that is off by some 0.06.
"""

from __future__ import annotations

import re
import zlib

SKETCH = 64
_HASH = 4
MIN_TOKENS = 6
"""Texts with fewer tokens are alike only if they are equal but for their digits."""
_LOOKED_AT = 20_000

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+", re.UNICODE)
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def tokens(text: str) -> list[str]:
    """Words in lower case with numbers as `#`; of scripts without spaces three characters at a time."""
    head = text[:_LOOKED_AT].lower()
    unspaced = len(_UNSPACED.findall(head[:400]))
    if unspaced * 3 > min(len(head), 400):
        plain = re.sub(r"\d+", "#", "".join(head.split()))
        return [plain[at : at + 3] for at in range(max(0, len(plain) - 2))] or [plain]
    return ["#" if word[0].isdigit() else word for word in _WORD.findall(head)]


def masked_text(text: str) -> str:
    """The text without digits, white space and case: what short texts are compared by."""
    return "".join(re.sub(r"\d+", "#", text[:_LOOKED_AT].lower()).split())


def sketch(words: list[str]) -> bytes:
    """The smallest hashes of the different words, ascending, packed big-endian."""
    hashes = sorted({zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words})[:SKETCH]
    return b"".join(each.to_bytes(_HASH, "big") for each in hashes)


def _unpacked(packed: bytes) -> list[bytes]:
    return [packed[at : at + _HASH] for at in range(0, len(packed), _HASH)]


def permille(a: bytes, b: bytes) -> int:
    """Jaccard index of two sketches in thousandths; exact when neither text has over 64 words."""
    first, second = set(_unpacked(a)), set(_unpacked(b))
    union = first | second
    if not union:
        return 1_000
    if len(first) < SKETCH and len(second) < SKETCH:
        return 1_000 * len(first & second) // len(union)
    smallest = sorted(union)[:SKETCH]
    shared = first & second
    return 1_000 * sum(each in shared for each in smallest) // len(smallest)
