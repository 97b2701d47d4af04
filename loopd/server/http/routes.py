"""One route for each command: from this table come the router, OpenAPI and the reference.

Most commands have the path that REST readers expect. One that is not named here gets a path from its type:
`a.b` becomes `/v1/a/b`, or `/v1/sessions/{sid}/a/b` when it is about one session.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect as types

from loopd_protocol import codec
from loopd_protocol.commands import COMMAND_TYPES, MUTATING, SCOPES, Command
from loopd_protocol.errors import Refused

_SESSION = "/v1/sessions/{sid}"
_NAMED: dict[str, tuple[str, str]] = {
    "session.list": ("GET", "/v1/sessions"),
    "session.create": ("POST", "/v1/sessions"),
    "session.get": ("GET", _SESSION),
    "session.end": ("POST", f"{_SESSION}/end"),
    "session.resume": ("POST", f"{_SESSION}/resume"),
    "session.fork": ("POST", f"{_SESSION}/fork"),
    "session.set": ("POST", f"{_SESSION}/settings"),
    "report": ("GET", f"{_SESSION}/report"),
    "why": ("GET", f"{_SESSION}/why"),
    "gate.get": ("GET", f"{_SESSION}/gate"),
    "inbox.list": ("GET", f"{_SESSION}/inbox"),
    "inbox.drop": ("DELETE", f"{_SESSION}/inbox/{{id}}"),
    "cron.list": ("GET", "/v1/crons"),
    "cron.next": ("GET", "/v1/crons/next"),
    "cron.put": ("PUT", f"{_SESSION}/crons/{{job}}"),
    "cron.remove": ("DELETE", f"{_SESSION}/crons/{{job}}"),
    "cron.pause": ("POST", f"{_SESSION}/crons/{{job}}/pause"),
    "cron.resume": ("POST", f"{_SESSION}/crons/{{job}}/resume"),
    "cron.run": ("POST", f"{_SESSION}/crons/{{job}}/run"),
    "cron.history": ("GET", f"{_SESSION}/crons-history"),
    "history.page": ("GET", "/v1/history"),
    "turn.get": ("GET", f"{_SESSION}/turn"),
    "turn.diff": ("GET", f"{_SESSION}/turn-diff"),
    "verify": ("GET", "/v1/verify"),
    "daemon.status": ("GET", "/v1/status"),
    "daemon.freeze": ("POST", "/v1/freeze"),
    "daemon.unfreeze": ("POST", "/v1/unfreeze"),
    "daemon.drain": ("POST", "/v1/drain"),
    "daemon.stop": ("POST", "/v1/stop"),
    "batch": ("POST", "/v1/batch"),
    "token.new": ("POST", "/v1/tokens"),
    "token.list": ("GET", "/v1/tokens"),
    "token.revoke": ("DELETE", "/v1/tokens/{kid}"),
    "token.rotate": ("POST", "/v1/tokens/{kid}/rotate"),
    "audit": ("GET", "/v1/audit"),
    "consumer.create": ("POST", "/v1/consumers"),
    "consumer.list": ("GET", "/v1/consumers"),
    "consumer.ack": ("POST", "/v1/consumers/{name}/ack"),
    "consumer.delete": ("DELETE", "/v1/consumers/{name}"),
    "webhook.create": ("POST", "/v1/webhooks"),
    "webhook.list": ("GET", "/v1/webhooks"),
    "webhook.delete": ("DELETE", "/v1/webhooks/{name}"),
    "webhook.retry": ("POST", "/v1/webhooks/{name}/retry"),
    "approval.list": ("GET", "/v1/approvals"),
    "approval.answer": ("POST", f"{_SESSION}/approvals/{{id}}"),
    "budget.get": ("GET", "/v1/budgets"),
    "budget.set": ("POST", "/v1/budgets"),
}
NOT_HERE = frozenset({"agent.ask"})
"""Commands that no HTTP client can use; `POST /v1/commands` refuses them like any other they may not."""
_PLACE = re.compile(r"{(\w+)}")


class ResourceRoute(msgspec.Struct, frozen=True):
    """How one command is asked for by a path.

    Attributes:
        in_path: fields that stand in the path.
    """

    method: str
    path: str
    command: str
    in_path: tuple[str, ...]

    @property
    def cls(self) -> type[Command]:
        """The command's type."""
        return COMMAND_TYPES[self.command]

    @property
    def scope(self) -> str:
        """The scope that it needs."""
        return SCOPES[self.command]

    @property
    def by_query(self) -> bool:
        """Whether the other fields are in the query; else in a JSON body."""
        return self.method in {"GET", "DELETE"}


def resource_routes() -> list[ResourceRoute]:
    """All routes, those with fewer places in their path first."""
    found = []
    for kind in COMMAND_TYPES:
        if kind in NOT_HERE:
            continue
        method, path = _NAMED.get(kind) or _derived(kind)
        fields = {field.name for field in msgspec.structs.fields(COMMAND_TYPES[kind])}
        places = tuple(_PLACE.findall(path))
        missing = [place for place in places if place not in fields]
        if missing:
            raise RuntimeError(f"route {path!r} of {kind} names {missing}, which it has not")
        found.append(ResourceRoute(method, path, kind, places))
    found.sort(key=lambda route: (len(route.in_path), route.path))
    return found


def _derived(kind: str) -> tuple[str, str]:
    method = "POST" if kind in MUTATING else "GET"
    fields = {field.name: field for field in msgspec.structs.fields(COMMAND_TYPES[kind])}
    tail = kind.replace(".", "/")
    one = "sid" in fields and fields["sid"].required
    return method, f"{_SESSION}/{tail}" if one else f"/v1/{tail}"


# -- requests to commands -------------------------------------------------------------------------


def from_body(route: ResourceRoute, places: dict[str, str], body: bytes) -> Command:
    """The command of a request whose fields are in a JSON body.

    Raises:
        Refused: as `codec.decode_command`; `invalid` when the body names what the path names.
    """
    fields = object_of(body) if body.strip() else {}
    twice = sorted({*places, "t"} & set(fields))
    if twice:
        raise Refused(
            "invalid", f"{twice[0]!r} stands in the path; leave it out of the body", path=f"$.{twice[0]}"
        )
    whole = _numbers(route.cls, dict(places))
    return codec.decode_command(msgspec.json.encode({"t": route.command, **whole, **fields}))


def from_query(route: ResourceRoute, places: dict[str, str], query: list[tuple[str, str]]) -> Command:
    """The command of a request whose fields are in its query.

    A field that takes several values may stand several times; labels are `label=NAME=VALUE`.

    Raises:
        Refused: as `codec.decode_command`.
    """
    fields = query_fields(route.cls)
    body: dict[str, Any] = _numbers(route.cls, dict(places))
    for name, value in query:
        if name in places or name not in fields:
            known = ", ".join(field for field in fields if field not in places) or "none"
            raise Refused("unknown_field", f"no query parameter {name!r}; expected {known}", path=f"$.{name}")
        field = fields[name]
        holder = body if field.inside is None else body.setdefault(field.inside, {})
        if field.kind == "labels":
            label, equals, text = value.partition("=")
            if not equals:
                raise Refused("invalid", f"{name} is {value!r}; expected NAME=VALUE", path=f"$.{name}")
            holder.setdefault(field.name, {})[label] = text
        elif field.kind == "many":
            holder.setdefault(field.name, []).append(value)
        elif field.name in holder:
            raise Refused("invalid", f"query parameter {name!r} is given twice", path=f"$.{name}")
        else:
            holder[field.name] = _value(field, value)
    return codec.decode_command(msgspec.json.encode({"t": route.command, **body}))


class QueryField(msgspec.Struct, frozen=True):
    """One query parameter: `kind` is text, number, truth, json, many or labels; `inside` the object it goes to."""

    name: str
    kind: str
    type: types.Type
    required: bool
    inside: str | None = None


def query_fields(cls: type[Command]) -> dict[str, QueryField]:
    """Query parameters of a command, by name; those of a selector stand beside the others."""
    found: dict[str, QueryField] = {}
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    for field in info.fields:
        kind = _bare(field.type)
        if isinstance(kind, types.StructType) and field.name == "selector":
            for inner in kind.fields:
                name = "label" if inner.name == "labels" else "sid" if inner.name == "sids" else inner.name
                found[name] = QueryField(inner.name, _kind(inner.type), inner.type, False, field.name)  # noqa: FBT003
            continue
        name = {"labels": "label", "kinds": "kind", "sids": "sid"}.get(field.name, field.name)
        found[name] = QueryField(field.name, _kind(field.type), field.type, field.required)
    return found


def _bare(kind: types.Type) -> types.Type:
    while isinstance(kind, types.Metadata):
        kind = kind.type
    if isinstance(kind, types.UnionType):
        rest = [_bare(member) for member in kind.types if not isinstance(member, types.NoneType)]
        return rest[0] if len(rest) == 1 else kind
    return kind


def _kind(kind: types.Type) -> str:
    match _bare(kind):
        case types.VarTupleType() | types.ListType():
            return "many"
        case types.DictType(value_type=types.StrType()):
            return "labels"
        case types.IntType():
            return "number"
        case types.BoolType():
            return "truth"
        case types.StrType() | types.LiteralType() | types.EnumType():
            return "text"
    return "json"


def _value(field: QueryField, value: str) -> Any:
    match field.kind:
        case "number":
            if re.fullmatch(r"-?[0-9]{1,16}", value):
                return int(value)
        case "truth":
            if value in {"true", "1", ""}:
                return True
            if value in {"false", "0"}:
                return False
        case "json":
            return json_of(value.encode())
    return value


def _numbers(cls: type[Command], places: dict[str, str]) -> dict[str, Any]:
    fields = query_fields(cls)
    return {
        name: _value(fields[name], text) if fields[name].kind == "number" else text
        for name, text in places.items()
    }


def json_of(data: bytes) -> Any:
    """JSON within the bounds of the protocol.

    Raises:
        Refused: `bad_frame`.
    """
    codec.check_text(data)
    codec.check_depth(data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("bad_frame", f"not JSON: {str(error)[:200]}") from None
    codec.check_keys(data)
    return value


def object_of(data: bytes) -> dict[str, Any]:
    """A JSON object within the bounds of the protocol.

    Raises:
        Refused: `bad_frame`.
    """
    value = json_of(data)
    if not isinstance(value, dict):
        raise Refused("bad_frame", "the body is not a JSON object")
    return value
