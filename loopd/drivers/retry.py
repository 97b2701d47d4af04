"""When is a failed model call tried again? A pure policy: facts in, a delay or a refusal out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

CAUSES: tuple[str, ...] = (
    "rate_limited",
    "overloaded",
    "unreachable",
    "server_error",
    "bad_response",
    "auth",
    "rejected",
    "chanting",
    "context_overflow",
    "error_prose",
)
"""Why a model call failed. `rejected`: the endpoint understood and refused (4xx); a retry cannot help.
`context_overflow`: the request is longer than the model can read. `error_prose`: the answer's text is an
error that the endpoint told in words."""

RETRYABLE: frozenset[str] = frozenset({"rate_limited", "overloaded", "unreachable", "server_error"})
_OVERLOADED = re.compile(r"overload|at capacity|high demand|too busy", re.IGNORECASE)
_OVERFLOW = re.compile(
    r"context_length_exceeded|context.{0,20}(?:length|window|size).{0,60}(?:exceed|too|larger|limit)"
    r"|exceed\w*.{0,40}context|maximum context|prompt is too long|input (?:is|was)? ?too long"
    r"|too many (?:input )?tokens|input length.{0,40}exceed|request_too_large",
    re.IGNORECASE | re.DOTALL,
)
_AUTH = re.compile(r"authentication|permission_error|invalid.{0,10}api.?key|unauthorized", re.IGNORECASE)
_EXHAUSTED = re.compile(r"insufficient_quota|billing_hard_limit|credit balance", re.IGNORECASE)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One failed model call.

    Attributes:
        cause: one of `CAUSES`.
        message: what was met, for people; never holds the API key.
        retry_after_ms: what the endpoint asked for, or None.
        retryable: the same request may succeed later.
    """

    cause: str
    message: str
    retry_after_ms: int | None = None
    retryable: bool = False


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with jitter, in milliseconds.

    Attributes:
        retries: how often a call is tried again; 0 turns retries off.
        patience_ms: longest `Retry-After` that is waited for inside a turn; a longer one ends the
            turn at once, and the gate waits instead.
    """

    retries: int = 3
    base_ms: int = 500
    cap_ms: int = 20_000
    patience_ms: int = 30_000

    def delay_ms(self, fault: Fault, attempt: int, jitter: float) -> int | None:
        """How long to wait before retry number `attempt` (from 1), or None to give up.

        Args:
            fault: what happened.
            attempt: number of the retry that would come now.
            jitter: a random number in [0, 1); the wait is 50 to 100 % of the backoff, but never
                shorter than what the endpoint asked for.
        """
        if not fault.retryable or attempt > self.retries:
            return None
        backoff = min(self.cap_ms, self.base_ms * 2 ** min(attempt - 1, 30))
        wait = int(backoff * (0.5 + jitter / 2))
        if fault.retry_after_ms is None:
            return wait
        if fault.retry_after_ms > self.patience_ms:
            return None
        return max(fault.retry_after_ms, min(wait, self.patience_ms))


def fault_of_status(status: int, headers: Mapping[str, str], body: str) -> Fault:
    """Sort an HTTP answer other than 2xx by whose fault it is.

    Args:
        status: HTTP status.
        headers: response headers, names in lower case.
        body: beginning of the answer's body.
    """
    if status in {400, 413, 422, 500} and _OVERFLOW.search(body):
        cause, retryable = "context_overflow", False
    elif status in {401, 403}:
        cause, retryable = "auth", False
    elif status == 429:
        cause, retryable = "rate_limited", not _EXHAUSTED.search(body)
    elif status in {503, 529} or (status >= 500 and _OVERLOADED.search(body)):
        cause, retryable = "overloaded", True
    elif status == 408 or status >= 500:
        cause, retryable = "server_error", True
    elif 400 <= status < 500:
        cause, retryable = "rejected", False
    else:
        cause, retryable = "bad_response", False
    shown = " ".join(body.split())[:300]
    return Fault(
        cause=cause,
        message=f"HTTP {status}: {shown}" if shown else f"HTTP {status}",
        retry_after_ms=retry_after_ms(headers),
        retryable=retryable,
    )


def fault_of_error(error: object) -> Fault:
    """Sort an error object that came inside a stream that had begun with 200."""
    fields = error if isinstance(error, dict) else {"message": str(error)}
    text = " ".join(str(fields.get(key, "")) for key in ("type", "code", "message")).strip()
    code = fields.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return fault_of_status(code, {}, text)
    if _OVERFLOW.search(text):
        return Fault(cause="context_overflow", message=text[:300])
    if _AUTH.search(text):
        return Fault(cause="auth", message=text[:300])
    if _EXHAUSTED.search(text):
        return Fault(cause="rate_limited", message=text[:300])
    if "invalid_request" in text or "not_found" in text:
        return Fault(cause="rejected", message=text[:300])
    if re.search(r"rate.?limit", text, re.IGNORECASE):
        return Fault(cause="rate_limited", message=text[:300], retryable=True)
    if _OVERLOADED.search(text):
        return Fault(cause="overloaded", message=text[:300], retryable=True)
    return Fault(cause="server_error", message=text[:300] or "an error without a text", retryable=True)


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """What `Retry-After` (or `retry-after-ms`) asks for; None when absent or not readable.

    A date is compared with the answer's own `Date`, so that neither clock has to be right.
    """
    precise = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"\d{1,12}(\.\d+)?", precise):
        return int(float(precise))
    asked = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", asked):
        return int(float(asked) * 1_000)
    when, now = _moment(asked), _moment(headers.get("date", ""))
    if when is None or now is None:
        return None
    return max(0, int((when - now).total_seconds() * 1_000))


def _moment(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
