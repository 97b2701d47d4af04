"""The closed registry of error codes: what was refused, whose fault it is, and what to do next."""

from __future__ import annotations

from types import MappingProxyType

import msgspec


class ErrorCode(msgspec.Struct, frozen=True):
    """One row of the registry.

    Attributes:
        http: status of the HTTP mapping (RFC 9457 problem details).
        exit: exit code of `loopctl`.
        fault: `client`, `state` (the request is fine, the moment is not) or `server`.
        retryable: the same request may succeed later without a change.
        meaning: one sentence for people.
    """

    http: int
    exit: int
    fault: str
    retryable: bool
    meaning: str


def _row(http: int, exit_: int, fault: str, retryable: int, meaning: str) -> ErrorCode:
    return ErrorCode(http, exit_, fault, bool(retryable), meaning)


ERRORS: MappingProxyType[str, ErrorCode] = MappingProxyType(
    {
        "bad_frame": _row(400, 2, "client", 0, "The bytes are not a frame of this protocol."),
        "frame_too_large": _row(413, 2, "client", 0, "The frame is larger than the limit in `welcome`."),
        "unsupported_version": _row(400, 6, "client", 0, "Client and daemon share no protocol version."),
        "unknown_type": _row(400, 2, "client", 0, "No command or frame has this type."),
        "unknown_field": _row(400, 2, "client", 0, "A command carries a field that it does not have."),
        "invalid": _row(422, 2, "client", 0, "A value has the wrong type or is out of bounds."),
        "unauthenticated": _row(401, 5, "client", 0, "The peer did not prove who it is."),
        "forbidden": _row(403, 5, "client", 0, "The principal lacks the scope for this."),
        "not_found": _row(404, 3, "client", 0, "No such session, turn, job or envelope."),
        "already_exists": _row(409, 4, "client", 0, "The name is taken."),
        "gate_closed": _row(409, 4, "state", 1, "A hold makes this impossible now."),
        "session_terminal": _row(409, 4, "state", 0, "The session has ended."),
        "conflict": _row(409, 4, "state", 1, "The state does not allow this command."),
        "precondition_failed": _row(412, 4, "state", 1, "An `if_…` condition does not hold."),
        "idempotency_conflict": _row(409, 4, "client", 0, "The key was used for another command."),
        "imported": _row(409, 4, "state", 0, "The session belongs to another log and can only be read here."),
        "not_owner": _row(421, 6, "state", 1, "Another node owns the session."),
        "lease_lost": _row(503, 6, "state", 1, "The node lost its lease."),
        "overloaded": _row(503, 6, "server", 1, "A bounded queue is full; nothing was accepted."),
        "rate_limited": _row(429, 6, "client", 1, "Too many requests by this principal."),
        "draining": _row(503, 6, "state", 1, "The daemon is about to stop and takes no new work."),
        "storage_full": _row(507, 6, "server", 1, "The disk or the configured size is full."),
        "storage_readonly": _row(503, 6, "server", 0, "The journal cannot be written."),
        "corrupt": _row(500, 6, "server", 0, "Stored data do not verify; the daemon is read-only."),
        "internal": _row(500, 7, "server", 0, "The daemon failed on this request; the outcome is uncertain."),
        "timeout": _row(504, 7, "server", 1, "No answer in time; the outcome is uncertain."),
        "cancelled": _row(499, 7, "client", 1, "The caller withdrew the request."),
    }
)


class Refused(Exception):
    """A request that was not carried out; nothing was changed.

    Raised where the fault is known and translated at the walls (socket, HTTP, command line).

    Attributes:
        code: a key of `ERRORS`.
        path: the field that is at fault, for example `$.until_ms`, or None.
        retry_after_ms: hint for retryable codes, or None.
    """

    def __init__(
        self, code: str, message: str, *, path: str | None = None, retry_after_ms: int | None = None
    ) -> None:
        if code not in ERRORS:
            raise ValueError(f"unknown error code {code!r}; expected one of {', '.join(ERRORS)}")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.path = path
        self.retry_after_ms = retry_after_ms

    @property
    def row(self) -> ErrorCode:
        """The registry's row for this code."""
        return ERRORS[self.code]
