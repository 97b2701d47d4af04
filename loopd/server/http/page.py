"""The web page: a few files that ship with the package, each at a fixed path.

They are read once and served from memory, so no request ever names a file. Nobody needs a token for them: they
hold no data; what they show comes from `/v1`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent.parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def page_routes() -> list[Route]:
    """`/` and `/page/…`, one route for each file."""
    routes = []
    for file in sorted(FOLDER.rglob("*")):
        if file.suffix in TYPES:
            name = file.relative_to(FOLDER).as_posix()
            path = "/" if name == "index.html" else f"/page/{name}"
            routes.append(
                Route(path, _serves(file.read_bytes(), TYPES[file.suffix]), methods=["GET", "HEAD"])
            )
    return routes


def _serves(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return serve
