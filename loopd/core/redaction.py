"""Redaction: secrets in texts that leave the journal, replaced by what they were. Pure, deterministic.

It knows the shapes of common credentials, and values that stand behind a telling name. It is a net, not a
proof: a secret without shape or name passes.
"""

from __future__ import annotations

import re

_MARK = "[redacted]"

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bnpm_[A-Za-z0-9]{20,}|\bpypi-[A-Za-z0-9_-]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
    re.DOTALL,
)
_BEARER = re.compile(r"\b((?:bearer|basic|token)\s+)[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
_URL = re.compile(r"([a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}(?=@)", re.IGNORECASE)
_NAMED = re.compile(
    r"""([A-Za-z0-9_-]{0,40}(?:password|passwd|passphrase|secret|api[_-]?key|apikey|access[_-]?key|auth[_-]?token"""
    r"""|[_-]token|private[_-]?key|credential)s?[A-Za-z0-9_]{0,20}\\?["']?\s{0,4}[:=]\s{0,4}\\?["']?)[^\s"'&;,\\]{3,}""",
    re.IGNORECASE,
)
_FLAG = re.compile(r"(--?(?:password|passwd|token|secret|api-key|apikey)[ =])[^\s\"']{3,}", re.IGNORECASE)


def redacted(text: str) -> str:
    """The text with each secret that is recognised replaced by `[redacted]`; doing it again changes nothing."""
    text = _SHAPES.sub(_MARK, text)
    for pattern in (_BEARER, _URL, _NAMED, _FLAG):
        text = pattern.sub(rf"\1{_MARK}", text)
    return text
