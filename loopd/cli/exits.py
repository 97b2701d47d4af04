"""Exit codes of `loopctl`, and the one line that says why.

0 ok · 1 a check did not pass (`verify`) · 2 usage · 3 not found · 4 conflict or gate closed ·
5 unauthorised · 6 unavailable · 7 uncertain: the command may or may not have been carried out.
"""

from __future__ import annotations

OK, FAILED, USAGE, NOT_FOUND, CONFLICT, UNAUTHORISED, UNAVAILABLE, UNCERTAIN = range(8)

LOCAL = {"usage": USAGE, "unavailable": UNAVAILABLE, "uncertain": UNCERTAIN, "timeout": UNCERTAIN}
"""Codes that this program itself may print beside those of the protocol's registry."""


class Failure(Exception):
    """The command did not succeed; becomes one line on stderr and an exit code.

    Attributes:
        code: of the protocol's registry, or a key of `LOCAL`.
        path: the field at fault, or None.
        hint: what to do next, or empty.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        path: str | None = None,
        retry_after_ms: int | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.retry_after_ms = retry_after_ms
        self.hint = hint

    @property
    def exit(self) -> int:
        """Exit code of the process."""
        return exit_of(self.code)

    def as_json(self) -> dict[str, object]:
        """`{"error": {"code", "message", …}}` for `-o json`."""
        error: dict[str, object] = {"code": self.code, "message": self.message, "exit": self.exit}
        for name in ("path", "retry_after_ms", "hint"):
            if getattr(self, name):
                error[name] = getattr(self, name)
        return {"error": error}


def exit_of(code: str) -> int:
    """Exit code for an error code; a code from a newer daemon counts as unavailable."""
    if code in LOCAL:
        return LOCAL[code]
    from loopd_protocol.errors import ERRORS

    row = ERRORS.get(code)
    return UNAVAILABLE if row is None else row.exit
