"""Write `docs/reference/http.md`, `openapi.json` and `asyncapi.json` from the routes and types.

python docs/generate_http.py            write them
python docs/generate_http.py --check    say what is stale, exit 1
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from loopd.server.http import documents
from loopd.server.http.routes import ResourceRoute, query_fields, resource_routes
from loopd_protocol.errors import ERRORS

OUT = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/generate_http.py from the code; `make docs` writes it again. -->"
INTRO = """\
Off until [`http.listen`](configuration.md) is set (`loopd serve --http 127.0.0.1:9464`), and even then only `/livez`,
`/readyz` and `/metrics` are served until a token exists: `loopctl token new`. Every route is one command of the
dispatcher behind the control socket, with the same rights, the same answers and the same [errors](errors.md).

## Asking

- **Who**: `Authorization: Bearer lpd_…`. A token is never taken from an URL. Pages use `POST /v1/login`, see below.
- **What**: `POST /v1/commands` takes any [command](commands.md) as its JSON object, `{"t": "suspend", "sid": "mapper"}`. The
  routes below take the same fields: in the path, and the others in the query (`GET`, `DELETE`) or in a JSON body.
  Sessions are named by id or by name. A field that is not known is an error, never skipped.
- **Once**: `Idempotency-Key: KEY` makes a change happen once, however often it is sent, for seven days.
- **Only if**: `If-Rev: N`, `If-Gate-Gen: N` and `If-Turn: N` refuse a change when the session has moved on (412).
- **Answers** have one form: `{"seq": 918280, "rev": 41, "dup": false, "r": {…}}`. `seq` is the log position that makes a change
  durable, `r` the result that the command's page describes.
- **Refusals** are problem documents (RFC 9457, `application/problem+json`):
  `{"type": "urn:loopd:error:gate_closed", "title": "…", "status": 409, "code": "gate_closed", "detail": "…"}`,
  with `path` for the field at fault and `retry_after_ms` (and `Retry-After`) where waiting helps.
- **Limits**: a request's head within 5 s and 16 KiB, a body of 1 MiB within 10 s, `access.rate_per_s` commands a second for each
  token (429).

```sh
curl -s -H "Authorization: Bearer $(cat ada.token)" http://127.0.0.1:9464/v1/sessions?sort=stagnation
curl -s -H "Authorization: Bearer $(cat ada.token)" -H 'Idempotency-Key: review-1' \\
     -d '{"reason": "cost review"}' http://127.0.0.1:9464/v1/sessions/mapper/suspend
loopctl --url http://127.0.0.1:9464 --token-file ada.token ps
```

## Events: `GET /v1/events`

Server-sent events. Parameters: `sid` and `kind` (repeatable; patterns such as `gate.*`), `after` (cursor `LOG:SEQ`, or a bare
sequence number), `snapshot`, `deltas`, `consumer`. Without `after` the stream begins at the head of the log.

```
event: subd
data: {"t":"subd","id":"sse","at":{"log":"lg_7Q","seq":918280}}

id: lg_7Q:918283
data: {"t":"ev","sub":"sse","seq":918283,"prev":918281,"sid":"ses_a","ss":5120,"ts":…,"k":"gate.changed","kv":1,"b":{…}}

: still here
id: lg_7Q:918301
```

`data` is the frame as on the [control socket](events.md). Events (`t` = `ev`) have no `event:` name, so `onmessage` gets them; `subd`,
`snap`, `gap`, `lag`, `delta` and `bye` come under theirs. `id` is the cursor: a client that reconnects with
`Last-Event-ID` (browsers do it by themselves) gets each event once and in order. Heartbeats move the id as well, so a
filtered stream never starts over. A client that takes nothing for 30 s is cut off; nothing is lost by that.
Without `read.content`, events come without what was said in them.

## WebSocket: `GET /v1/ws`

The frames of the control socket: a text message holds one or several, a line each; `{"t":"hello","v":[1,1]}` comes first. Who you
are comes from the request's `Authorization`, from `"auth": "lpd_…"` in `hello`, or, in browsers, from a ticket:
`POST /v1/tickets` gives one that is good once and for 30 s, for `hello.auth` or `/v1/ws?ticket=lpt_…`.

## Pages

`POST /v1/login` with `{"token": "lpd_…"}` sets a cookie (`HttpOnly`, `SameSite=Strict`, 12 hours) that stands for the token, and answers
`{"principal", "scopes", "labels", "csrf", "ends_ms"}`. Changes by cookie must carry `X-CSRF-Token: CSRF`; `GET /v1/me` tells it again.
`POST /v1/logout` ends it, durably, also for whoever copied it; it is refused (`storage_full`, `storage_readonly`) when that cannot be
kept. A revoked token ends its logins and streams at once.
A request with a foreign `Origin` or `Host` is refused before anything else; there is no CORS.
"""


def _row(route: ResourceRoute) -> str:
    others = [name for name in query_fields(route.cls) if name not in route.in_path]
    if not route.by_query:
        others = [f.name for f in msgspec.structs.fields(route.cls) if f.name not in route.in_path]
    where = (
        ("query: " if route.by_query else "body: ") + ", ".join(f"`{name}`" for name in others)
        if others
        else ""
    )
    anchor = route.command.replace(".", "")
    return f"| `{route.method} {route.path}` | [`{route.command}`](commands.md#{anchor}) | `{route.scope}` | {where} |"


def page() -> str:
    """The reference page."""
    lines = ["# HTTP API", "", NOTE, "", INTRO.rstrip(), "", "## Routes", ""]
    lines += ["| request | command | scope | fields |", "| --- | --- | --- | --- |"]
    lines += [_row(route) for route in sorted(resource_routes(), key=lambda r: (r.path, r.method))]
    lines += [
        "",
        "And without a command behind them: `GET /v1/welcome` (who you are, the head of the log, the schema's digest), `GET /v1/me`,",
        "`POST /v1/tickets`, `POST /v1/login`, `POST /v1/logout`, `GET /v1/schema` (JSON Schema of the protocol), `GET /v1/openapi.json`",
        "([here](openapi.json)), `GET /v1/asyncapi.json` ([here](asyncapi.json)), `GET /livez`, `GET /readyz`, `GET /metrics`.",
        "",
        "## Status codes",
        "",
        "| status | codes |",
        "| --- | --- |",
    ]
    by_status: dict[int, list[str]] = {}
    for code, row in ERRORS.items():
        by_status.setdefault(row.http, []).append(code)
    lines += [
        f"| {status} | {', '.join(f'`{c}`' for c in by_status[status])} |" for status in sorted(by_status)
    ]
    return "\n".join(lines) + "\n"


def _readable(document: dict[str, Any]) -> str:
    """One line for each path, message and schema: short enough to read in a diff, small enough to keep."""

    def lines(node: object, depth: int, indent: str = "") -> str:
        if depth == 0 or not isinstance(node, dict) or not node:
            return json.dumps(node, ensure_ascii=False, separators=(", ", ": "))
        inner = indent + " "
        rows = [f"{inner}{json.dumps(key)}: {lines(value, depth - 1, inner)}" for key, value in node.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"

    return lines(document, 3) + "\n"


def files() -> dict[str, str]:
    """File name → content."""
    made = {"http.md": page()}
    for name in ("openapi", "asyncapi"):
        document = json.loads(documents.document(name))
        document["info"]["version"] = "0.1"
        made[f"{name}.json"] = _readable(document)
    return made


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, text in files().items():
        path = OUT / name
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, "utf-8")
    for name in stale:
        print(f"{'stale' if check else 'wrote'}: {name}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
