"""Masks: what differs from run to run without meaning anything, taken out of a tool's output.

Masking costs some 240 µs per KB (measured), so callers mask only when the raw digest is new but the
call is not. Numbers that are not listed here stay significant: "3 failed" is not "2 failed".
"""

from __future__ import annotations

import hashlib
import re

EDGE_CHARS = 4_096
"""Of a longer text only this much of each end is masked and compared, and how many lines lie between."""

_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])"
_ISO = r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?)?"
_CLOCK = r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_HOUR = r"(?:1[0-2]|0?\d):[0-5]\d(?::[0-5]\d)? ?[AaPp]\.?[Mm]\b"
_DATE = (
    rf"\b\d{{1,2}}/\d{{1,2}}/\d{{4}}\b(?:,? (?:{_HOUR}|\d\d?:\d\d\b))?|\b{_HOUR}"
    rf"|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +)?(?:{_MONTH} +\d{{1,2}}|\d{{1,2}} +{_MONTH})\b(?:,? +\d{{4}}\b)?"
)
# seconds since the epoch only where they cannot be a size: in brackets at the beginning of a line; milliseconds anywhere
_EPOCH = r"(?m:^\[1[4-9]\d{8}(?:\.\d+)?\])|\b1[4-9]\d{11}\b"
_VOLATILE = (
    r"\b(?:(?:x-)?(?:request|req|trace|span|correlation|transaction|idempotency)[-_ ]?id|requestId|traceId|spanId|nonce|etag"
    r"|timestamp|ts)[\"']?\s?[:=]\s?(?:W/)?[\"']?[^\s\"',;}\])]+"
    r"|\b(?:req|trace|span|corr|txn)[-_][0-9A-Za-z]{6,}\b"
)
_UUID = r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
_ADDRESS = r"\b0x[0-9a-fA-F]+\b"
_HEX = r"\b(?=[a-fA-F]*\d)[0-9a-fA-F]{16,}\b"
_TEMPORARY = (
    r"(?:/private)?/(?:var/)?(?:tmp|folders)/[^\s'\":,;()\[\]<>]+|[A-Za-z]:\\[^\s'\"]*\\Temp\\[^\s'\"]+"
)
_DURATION = r"\b\d+(?:[.,]\d+)? ?(?:ns|us|µs|μs|ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b"
_COUNTER = r"\b(pid|PID|Pid|attempt|Attempt|retry|Retry|try|Try)([ :=#]{0,3})\d+\b"
_PROCESS = r"\b([Pp]rocess|[Tt]hread)([ :=#]{1,3})\d+\b"

_MASKED = re.compile(
    f"(?P<ansi>{_ANSI})|(?P<iso>{_ISO})|(?P<uuid>{_UUID})|(?P<address>{_ADDRESS})|(?P<clock>{_CLOCK})"
    f"|(?P<hex>{_HEX})|(?P<temporary>{_TEMPORARY})|(?P<duration>{_DURATION})|(?P<counter>{_COUNTER})"
    f"|(?P<date>{_DATE})|(?P<epoch>{_EPOCH})|(?P<volatile>{_VOLATILE})"
)
_REPLACED = {
    "ansi": "",
    "iso": "<time>",
    "uuid": "<uuid>",
    "address": "<address>",
    "clock": "<time>",
    "hex": "<hex>",
    "temporary": "<path>",
    "duration": "<duration>",
    "date": "<time>",
    "epoch": "<time>",
    "volatile": "<volatile>",
}
_FAILURE_LINE = re.compile(
    f"(?P<ansi>{_ANSI})|(?P<iso>{_ISO})|(?P<address>{_ADDRESS})|(?P<clock>{_CLOCK})"
    f"|(?P<temporary>{_TEMPORARY})|(?P<duration>{_DURATION})|(?P<counter>{_COUNTER}|{_PROCESS})"
)
_ASSERTION_LINE = re.compile(
    f"(?P<ansi>{_ANSI})|(?P<iso>^\\W{{0,2}}{_ISO})|(?P<clock>^\\W{{0,2}}{_CLOCK})|(?P<address>{_ADDRESS})"
    f"|(?P<temporary>{_TEMPORARY})|(?P<counter>{_COUNTER}|{_PROCESS})"
)
_ASSERTION = re.compile(r"assert|expect|received|actual|[!=]=", re.IGNORECASE)


def _replace(found: re.Match[str]) -> str:
    group = found.lastgroup or ""
    if group in _REPLACED:
        return _REPLACED[group]
    word = re.match(r"[A-Za-z]+", found.group())
    return f"{word.group().lower() if word else ''} <n>"


def mask(text: str) -> str:
    """`text` without volatile parts, white space collapsed.

    Masked are ANSI codes, dates and clock times, UUIDs, hex of 16 digits and more, 0x addresses,
    temporary paths, durations, the number behind `pid`, `attempt` and `retry`, and values that are named
    as a nonce, a timestamp or the id of a request or trace. Of a text over
    8 KiB the two ends are kept, cut at line ends where there are any.
    """
    if len(text) > 2 * EDGE_CHARS:
        head = text[:EDGE_CHARS]
        head = head[: head.rfind("\n") + 1] or head
        tail = text[-EDGE_CHARS:]
        tail = tail[tail.find("\n") + 1 :]
        lines = text.count("\n", len(head), len(text) - len(tail))
        return f"{_mask(head)} <{lines} lines> {_mask(tail)}"
    return _mask(text)


def _mask(text: str) -> str:
    return " ".join(_MASKED.sub(_replace, text).split())


def mask_failure_line(line: str) -> str:
    """One line of an error output for an error signature: values of assertions stay.

    ANSI codes, times, durations, addresses, process numbers and temporary paths go. On a line that
    compares values only what cannot be a value goes: a time at its beginning, addresses, paths.
    """
    pattern = _ASSERTION_LINE if _ASSERTION.search(line) else _FAILURE_LINE
    return " ".join(pattern.sub(_replace, line).split())


def masked_digest(text: str) -> str:
    """SHA-256 (hex) of the masked text."""
    return hashlib.sha256(mask(text).encode("utf-8", "surrogatepass")).hexdigest()
