"""What the server says of itself: JSON Schema, OpenAPI 3.1 and AsyncAPI 3, made from the types and the routes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

import loopd
from loopd.server.http.field_schemas import Document, about, moved, parameter, place_schema, schemas
from loopd.server.http.problems import PROBLEM_TYPE, STATUSES, Problem
from loopd.server.http.routes import ResourceRoute, query_fields, resource_routes
from loopd_protocol import schema
from loopd_protocol.commands import COMMAND_TYPES, MUTATING
from loopd_protocol.errors import ERRORS
from loopd_protocol.frames import CLIENT_FRAMES, SERVER_FRAMES

_REF = "#/components/schemas/"
_ANSWER: Document = {
    "type": "object",
    "required": ["seq", "rev", "dup", "r"],
    "properties": {
        "seq": {
            "type": "integer",
            "description": "The log position that makes a change durable; the head for what only reads.",
        },
        "rev": {"type": ["integer", "null"], "description": "Revision of the session concerned."},
        "dup": {
            "type": "boolean",
            "description": "It had been carried out before; this is its stored result.",
        },
        "r": {"type": "object", "description": "The result; see the command."},
    },
}
_TOKEN_OK: Document = {
    "type": "object",
    "required": ["principal", "scopes", "labels", "source"],
    "properties": {
        "principal": {"type": "string"},
        "scopes": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "source": {"type": "string"},
        "csrf": {"type": "string", "description": "For the header X-CSRF-Token of changes by cookie."},
        "ends_ms": {"type": "integer"},
    },
}


@functools.cache
def document(name: str) -> bytes:
    """`schema`, `openapi` or `asyncapi`, as JSON."""
    made: dict[str, Callable[[], Document]] = {
        "schema": schema.build,
        "openapi": openapi,
        "asyncapi": asyncapi,
    }
    return msgspec.json.encode(made[name]())


def openapi() -> Document:
    """OpenAPI 3.1 of all routes."""
    paths: dict[str, Document] = {}
    for route in resource_routes():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    paths["/v1/commands"] = {"post": _command_operation()}
    paths["/v1/events"] = {"get": _events_operation()}
    paths["/v1/welcome"] = {
        "get": _plain(
            "welcome", "Who you are, what you may do, and the head of the log.", {"$ref": f"{_REF}Welcome"}
        )
    }
    paths["/v1/me"] = {"get": _plain("me", "Who you are; with a cookie also its CSRF secret.", _TOKEN_OK)}
    ticket: Document = {
        "type": "object",
        "required": ["ticket", "ends_ms"],
        "properties": {"ticket": {"type": "string"}, "ends_ms": {"type": "integer"}},
    }
    paths["/v1/tickets"] = {
        "post": _plain("ticket", "A ticket for one WebSocket, good once and for 30 s.", ticket)
    }
    paths["/v1/login"] = {"post": _login_operation()}
    out: Document = {"type": "object", "required": ["out"], "properties": {"out": {"type": "boolean"}}}
    paths["/v1/logout"] = {"post": _plain("logout", "Forget the cookie.", out)}
    for name in ("schema", "openapi.json", "asyncapi.json"):
        paths[f"/v1/{name}"] = {"get": _plain(name, f"This daemon's {name}.", {"type": "object"})}
    probe: Document = {"type": "object"}
    paths["/livez"] = {"get": _open("livez", "The process lives.", probe)}
    paths["/readyz"] = {"get": _open("readyz", "It is ready, or why not.", probe, also=503)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "loopd",
            "version": loopd.__version__,
            "summary": "A daemon that keeps unattended agents honest.",
            "description": "Every route is one command of the dispatcher behind the control socket. Answers have "
            "the same form everywhere; refusals are RFC 9457 problems with the codes of the registry.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas([*COMMAND_TYPES.values(), SERVER_FRAMES["welcome"], Problem], _REF)
            | {"Answer": _ANSWER},
            "responses": _problem_responses(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "`lpd_<kid>_<43 characters>`"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "loopd"},
            },
        },
        "security": [{"bearer": []}, {"cookie": []}],
    }


def asyncapi() -> Document:
    """AsyncAPI 3 of the frames on `/v1/ws` and of the events on `/v1/events`."""
    ref = "#/components/schemas/"
    built = schema.build()
    schemas = moved(built["$defs"], ref)
    client = {f"client.{tag}": cls.__name__ for tag, cls in CLIENT_FRAMES.items()}
    server = {f"server.{tag}": cls.__name__ for tag, cls in SERVER_FRAMES.items()}
    messages = {
        name: {"name": name, "contentType": "application/json", "payload": {"$ref": f"{ref}{cls}"}}
        for name, cls in {**client, **server}.items()
    }
    events = [
        name
        for name in server
        if name.partition(".")[2] in {"ev", "snap", "subd", "gap", "lag", "delta", "bye"}
    ]

    def to(channel: str, names: list[str]) -> list[Document]:
        return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names]

    def held(names: list[str]) -> Document:
        return {name: {"$ref": f"#/components/messages/{name}"} for name in names}

    return {
        "asyncapi": "3.0.0",
        "info": {"title": "loopd", "version": loopd.__version__},
        "defaultContentType": "application/json",
        "channels": {
            "ws": {
                "address": "/v1/ws",
                "description": "Frames of the control socket; a text message holds one or several, a line each.",
                "messages": held([*client, *server]),
                "bindings": {
                    "ws": {"query": {"type": "object", "properties": {"ticket": {"type": "string"}}}}
                },
            },
            "events": {
                "address": "/v1/events",
                "description": "Server-sent events. `id` is the cursor LOG:SEQ; other frames than `ev` come with "
                "their tag as the event's name.",
                "messages": held(events),
                "bindings": {"http": {"bindingVersion": "0.3.0"}},
            },
        },
        "operations": {
            "ask": {
                "action": "receive",
                "channel": {"$ref": "#/channels/ws"},
                "messages": to("ws", list(client)),
            },
            "tell": {
                "action": "send",
                "channel": {"$ref": "#/channels/ws"},
                "messages": to("ws", list(server)),
            },
            "stream": {
                "action": "send",
                "channel": {"$ref": "#/channels/events"},
                "messages": to("events", events),
            },
        },
        "components": {"messages": messages, "schemas": schemas},
    }


# -- operations -----------------------------------------------------------------------------------


def _operation(route: ResourceRoute) -> Document:
    fields = query_fields(route.cls)
    parameters: list[Document] = [
        {"name": name, "in": "path", "required": True, "schema": place_schema(fields[name].type)}
        for name in route.in_path
    ]
    operation: Document = {
        "operationId": route.command,
        "summary": (route.cls.__doc__ or route.command).strip().partition("\n")[0],
        "description": about(route.cls, route.scope),
        "tags": [route.command.partition(".")[0]],
        "x-scope": route.scope,
        "parameters": parameters,
        "responses": _responses({"$ref": f"{_REF}Answer"}),
    }
    if route.by_query:
        for name, field in fields.items():
            if name not in route.in_path:
                parameters.append(parameter(name, field.kind, field.type, required=field.required))
    else:
        inner = schemas([route.cls], _REF)[route.cls.__name__]
        left = {
            name: value
            for name, value in inner["properties"].items()
            if name not in route.in_path and name != "t"
        }
        required = [name for name in inner.get("required", []) if name in left]
        body: Document = {"type": "object", "properties": left, "additionalProperties": False}
        if required:
            body["required"] = required
        operation["requestBody"] = {
            "required": bool(required),
            "content": {"application/json": {"schema": body}},
        }
    if route.command in MUTATING:
        parameters += _CONDITIONS
    return operation


def _command_operation() -> Document:
    refs = [{"$ref": f"{_REF}{cls.__name__}"} for cls in COMMAND_TYPES.values()]
    mapping = {tag: f"{_REF}{cls.__name__}" for tag, cls in COMMAND_TYPES.items()}
    body: Document = {"oneOf": refs, "discriminator": {"propertyName": "t", "mapping": mapping}}
    return {
        "operationId": "command",
        "summary": "Carry out any command, given as its JSON object.",
        "tags": ["commands"],
        "parameters": _CONDITIONS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses({"$ref": f"{_REF}Answer"}),
    }


def _events_operation() -> Document:
    many: Document = {"type": "array", "items": {"type": "string"}, "maxItems": 64}
    text: Document = {"type": "string", "maxLength": 220}
    flag: Document = {"type": "boolean"}
    listed = [
        ("sid", many, "Sessions by id or name; none means all."),
        ("kind", many, "Kinds or patterns such as `gate.*`; none means all."),
        ("after", text, "Cursor `LOG:SEQ` (or SEQ) to go on from; without it the stream begins at the head."),
        ("snapshot", flag, "Begin with the present sessions (`event: snap`)."),
        ("deltas", flag, "Also live text (`event: delta`); needs read.content."),
        ("consumer", text, "A named cursor and its selection."),
    ]
    parameters: list[Document] = [
        {"name": name, "in": "query", "schema": kind, "description": words} for name, kind, words in listed
    ]
    parameters.append(
        {"name": "Last-Event-ID", "in": "header", "schema": text, "description": "Beats `after`."}
    )
    responses = _responses({"type": "object"})
    responses["200"] = {
        "description": "Events, for as long as both sides want.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return {
        "operationId": "events",
        "summary": "Events as they happen, as server-sent events.",
        "tags": ["events"],
        "parameters": parameters,
        "responses": responses,
    }


def _login_operation() -> Document:
    body: Document = {
        "type": "object",
        "required": ["token"],
        "properties": {"token": {"type": "string", "minLength": 1, "maxLength": 256}},
    }
    return {
        "operationId": "login",
        "summary": "Take a token for a cookie (HttpOnly, SameSite=Strict) and a CSRF secret.",
        "tags": ["access"],
        "security": [],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(_TOKEN_OK),
    }


def _plain(name: str, summary: str, answer: Document) -> Document:
    return {"operationId": name, "summary": summary, "tags": ["access"], "responses": _responses(answer)}


def _open(name: str, summary: str, answer: Document, *, also: int | None = None) -> Document:
    told = {"description": summary, "content": {"application/json": {"schema": answer}}}
    responses = {"200": told, **({} if also is None else {str(also): told}), **_problems([403, 405, 421])}
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["health"],
        "security": [],
        "responses": responses,
    }


def _responses(answer: Document) -> Document:
    done = {"description": "Carried out.", "content": {"application/json": {"schema": answer}}}
    return {"200": done, **_problems([*STATUSES, 405])}


def _problems(statuses: list[int]) -> Document:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(set(statuses))}


def _problem_responses() -> Document:
    found: Document = {}
    for status in sorted({*STATUSES, 405}):
        codes = STATUSES.get(status, ["invalid"])
        found[str(status)] = {
            "description": "; ".join(f"`{code}`: {ERRORS[code].meaning}" for code in codes),
            "content": {PROBLEM_TYPE: {"schema": {"$ref": f"{_REF}Problem"}}},
        }
    return found


_CONDITIONS: list[Document] = [
    {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$"},
        "description": "The same key with the same command does it once, for seven days.",
    },
    *(
        {
            "name": name,
            "in": "header",
            "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999_999_999},
            "description": words,
        }
        for name, words in (
            ("If-Rev", "Refuse unless the session's revision is this one."),
            ("If-Gate-Gen", "Refuse unless the gate's generation is this one."),
            ("If-Turn", "Refuse unless this turn runs."),
        )
    ),
]
