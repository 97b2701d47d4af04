"""Types and fields of the protocol as schemas, as far as OpenAPI and AsyncAPI need them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect as types

from loopd_protocol import schema

Document = dict[str, Any]


def schemas(classes: list[type], ref: str) -> Document:
    """Schemas of these types and of all that they name, by name."""
    _, components = msgspec.json.schema_components(classes, ref_template=f"{ref}{{name}}")
    return plainly(schema.portable(components))


def moved(definitions: Document, ref: str) -> Document:
    """Definitions whose references lead elsewhere."""
    text = msgspec.json.encode(definitions).replace(b"#/$defs/", ref.encode())
    moved: Document = msgspec.json.decode(text)
    return moved


def plainly(node: Any) -> Document:
    """Tuples among the defaults become arrays."""
    plain: Document = msgspec.json.decode(msgspec.json.encode(node))
    return plain


def schema_of(kind: types.Type) -> Document:
    """The schema of a field's type, as far as paths and queries need it."""
    made: Document = {}
    match kind:
        case types.Metadata(type=inner):
            return schema_of(inner)
        case types.UnionType(types=members):
            rest = [member for member in members if not isinstance(member, types.NoneType)]
            return schema_of(rest[0]) if len(rest) == 1 else {}
        case types.StrType(min_length=low, max_length=high, pattern=pattern):
            made = {"type": "string", "minLength": low, "maxLength": high}
            made["pattern"] = None if pattern is None else pattern.replace("\\Z", "$")
        case types.IntType(ge=least, le=most):
            made = {"type": "integer", "minimum": least, "maximum": most}
        case types.BoolType():
            made = {"type": "boolean"}
        case types.LiteralType(values=values):
            made = {"type": "string", "enum": list(values)}
        case (
            types.VarTupleType(item_type=item, max_length=high)
            | types.ListType(item_type=item, max_length=high)
        ):
            made = {"type": "array", "items": schema_of(item), "maxItems": high}
        case types.DictType():
            made = {
                "type": "array",
                "items": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}=[^\\x00]{0,128}$"},
                "maxItems": 32,
            }
    return {name: value for name, value in made.items() if value is not None}


def place_schema(kind: types.Type) -> Document:
    """Schema of what stands in a path: one segment of it."""
    made = schema_of(kind)
    if made.get("type") == "string" and "pattern" not in made:
        made["pattern"] = "^[^/]+$"  # a place is one segment of the path
    return made


def parameter(name: str, kind: str, of: types.Type, *, required: bool) -> Document:
    """A query parameter."""
    made: Document = {"name": name, "in": "query", "schema": schema_of(of)}
    if required:
        made["required"] = True
    if kind == "labels":
        made["description"] = "`NAME=VALUE`; sessions that have all of them."
    if kind == "json":
        made = {"name": name, "in": "query", "content": {"application/json": {"schema": {}}}}
    return made


def about(cls: type, scope: str) -> str:
    """What a command is for, and the scope that it needs."""
    text = " ".join(line.strip() for line in (cls.__doc__ or "").strip().splitlines()).strip()
    return f"{text}\n\nNeeds scope `{scope}`."
