"""Refusals as RFC 9457 problem documents, with the registry's codes."""

from __future__ import annotations

import math

import msgspec
from starlette.responses import Response

from loopd_protocol.errors import ERRORS, Refused

PROBLEM_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem.

    Attributes:
        type: `urn:loopd:error:CODE`.
        title: what the code means.
        status: as in the status line.
        code: of the error registry.
        detail: what was met and what was expected.
        path: the field at fault, for example `$.until_ms`.
        retry_after_ms: when the same request may succeed.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    path: str | None = None
    retry_after_ms: int | None = None


def problem(code: str, detail: str, *, status: int | None = None) -> Response:
    """A problem document for a code of the error registry."""
    return refusal(Refused(code, detail), status=status)


def refusal(refused: Refused, *, status: int | None = None) -> Response:
    """A problem document for a refusal."""
    row = refused.row
    status = status or row.http
    body = Problem(
        type=f"urn:loopd:error:{refused.code}",
        title=row.meaning,
        status=status,
        code=refused.code,
        detail=refused.message,
        path=refused.path,
        retry_after_ms=refused.retry_after_ms,
    )
    answer = Response(msgspec.json.encode(body), status_code=status, media_type=PROBLEM_TYPE)
    if refused.retry_after_ms is not None:
        answer.headers["retry-after"] = str(max(1, math.ceil(refused.retry_after_ms / 1_000)))
    if status == 401:
        answer.headers["www-authenticate"] = 'Bearer realm="loopd"'
    return answer


STATUSES: dict[int, list[str]] = {}
"""HTTP status → codes that are answered with it."""
for _code, _row in ERRORS.items():
    STATUSES.setdefault(_row.http, []).append(_code)
