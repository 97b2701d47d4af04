"""The protocol as JSON Schema, its digest, and what a change of it would break.

`python -m loopd_protocol.schema` prints it; with two files it tells which changes between them
are breaking, exit code 1 if there is one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from loopd_protocol.commands import COMMAND_TYPES
from loopd_protocol.errors import ERRORS
from loopd_protocol.events import EVENT_TYPES
from loopd_protocol.frames import CLIENT_FRAMES, PROTOCOL_VERSION, SERVER_FRAMES

Document = dict[str, Any]
_WORDS = {"title", "description", "examples", "default", "$comment"}
"""Keywords that explain and do not constrain: no part of the digest, never breaking."""
_GROUPS = ("client", "server", "commands", "events")
_OUTGOING = ("server", "events")
"""What readers decode: there a field that may be absent now is breaking."""


class Change(msgspec.Struct, frozen=True):
    """One difference between two schemas. `path` is for people."""

    path: str
    what: str
    breaking: bool


def build() -> Document:
    """The schema of every frame, command and event, as JSON-ready objects."""
    groups: dict[str, Mapping[str, type]] = {
        "client": CLIENT_FRAMES,
        "server": SERVER_FRAMES,
        "commands": COMMAND_TYPES,
        "events": EVENT_TYPES,
    }
    types = [cls for members in groups.values() for cls in members.values()]
    _, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    by_group: Document = {
        group: {tag: {"$ref": f"#/$defs/{cls.__name__}"} for tag, cls in members.items()}
        for group, members in groups.items()
    }
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "loopd protocol",
        "version": PROTOCOL_VERSION,
        **by_group,
        "errors": {code: {"http": row.http, "exit": row.exit} for code, row in ERRORS.items()},
        "$defs": portable(components),
    }
    plain: Document = json.loads(json.dumps(document))  # tuples among the defaults become arrays
    return plain


@functools.cache
def digest() -> str:
    """`sha256:…` of the schema without its explanations."""
    return digest_of(build())


def digest_of(document: Document) -> str:
    """`sha256:…` of a schema; explanations and the order of keys do not count."""
    bare = json.dumps(_bare(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(bare.encode()).hexdigest()}"


def compare(old: Document, new: Document) -> list[Change]:
    """Everything that differs, each classified.

    Breaking: a type, field, error code or permitted value is gone; a field is newly required; a type,
    bound, pattern, unit or tag is another one. Compatible: new types, optional fields and values.
    """
    changes: list[Change] = []
    for group in (*_GROUPS, "errors"):
        before, after = old.get(group, {}), new.get(group, {})
        changes += [Change(f"{group}.{tag}", "removed", breaking=True) for tag in before if tag not in after]
        changes += [Change(f"{group}.{tag}", "added", breaking=False) for tag in after if tag not in before]
        changes += [
            Change(f"{group}.{tag}", f"{before[tag]} became {after[tag]}", breaking=True)
            for tag in before
            if tag in after and before[tag] != after[tag]
        ]
    outgoing = _reachable(old, _OUTGOING)
    for name, schema in old["$defs"].items():
        if name not in new["$defs"]:
            changes.append(Change(name, "removed", breaking=True))
        else:
            changes += _compare(name, schema, new["$defs"][name], outgoing=name in outgoing)
    changes += [Change(name, "added", breaking=False) for name in new["$defs"] if name not in old["$defs"]]
    return changes


def breaking(old: Document, new: Document) -> list[Change]:
    """Only the changes that may not happen within a major version."""
    return [change for change in compare(old, new) if change.breaking]


def portable(node: Any) -> Any:
    r"""Patterns as ECMA 262 has them: there `$` is the very end, and `\\Z` is the letter Z."""
    if isinstance(node, dict):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and pattern.endswith("\\Z"):
            node = {**node, "pattern": pattern.removesuffix("\\Z") + "$"}
        return {key: portable(value) for key, value in node.items()}
    return [portable(value) for value in node] if isinstance(node, list) else node


def _bare(node: Any, *, in_names: bool = False) -> Any:
    """The node without explanations. Below `properties` and the like, keys are names, not keywords."""
    if isinstance(node, dict):
        return {
            key: _bare(value, in_names=not in_names and key in {"properties", "$defs", *_GROUPS})
            for key, value in node.items()
            if in_names or key not in _WORDS
        }
    if isinstance(node, list):
        return [_bare(value) for value in node]
    return node


def _reachable(document: Document, groups: tuple[str, ...]) -> set[str]:
    todo = [name for group in groups for name in _refs(document.get(group, {}))]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += _refs(document["$defs"].get(name, {}))
    return found


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rsplit("/", 1)[-1]
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


def _compare(path: str, old: Any, new: Any, *, outgoing: bool) -> Iterator[Change]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield Change(path, f"{old!r} became {new!r}", breaking=True)
        return
    for key in {**old, **new}:
        if key in _WORDS:
            continue
        special = _KEYWORDS.get(key)
        if special is not None:
            yield from special(path, old.get(key), new.get(key), outgoing)
        elif isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _compare(f"{path}.{key}", old[key], new[key], outgoing=outgoing)
        elif old.get(key) != new.get(key):
            yield Change(f"{path}.{key}", f"{old.get(key)!r} became {new.get(key)!r}", breaking=True)


def _properties(path: str, old: Any, new: Any, outgoing: bool) -> Iterator[Change]:  # noqa: FBT001
    before, after = old or {}, new or {}
    for name in before:
        if name in after:
            yield from _compare(f"{path}.{name}", before[name], after[name], outgoing=outgoing)
        else:
            yield Change(f"{path}.{name}", "field removed", breaking=True)
    for name in after:
        if name not in before:  # breaking only if it is required, and `required` says so itself
            yield Change(f"{path}.{name}", "field added", breaking=False)


def _required(path: str, old: Any, new: Any, outgoing: bool) -> Iterator[Change]:  # noqa: FBT001
    before, after = set(old or ()), set(new or ())
    for name in sorted(after - before):
        yield Change(f"{path}.{name}", "newly required", breaking=True)
    for name in sorted(before - after):
        yield Change(f"{path}.{name}", "no longer required", breaking=outgoing)


def _values(path: str, old: Any, new: Any, outgoing: bool) -> Iterator[Change]:  # noqa: ARG001, FBT001
    """`enum` and `anyOf`: members may be added, never taken away."""
    before = {json.dumps(_bare(value), sort_keys=True) for value in old or ()}
    after = {json.dumps(_bare(value), sort_keys=True) for value in new or ()}
    if old is None or new is None:
        yield Change(path, "a list of values came or went", breaking=True)
        return
    for value in sorted(before - after):
        yield Change(path, f"{value} removed", breaking=True)
    for value in sorted(after - before):
        yield Change(path, f"{value} added", breaking=False)


_Rule = Callable[[str, Any, Any, bool], Iterator[Change]]
_KEYWORDS: dict[str, _Rule] = {
    "properties": _properties,
    "required": _required,
    "enum": _values,
    "anyOf": _values,
}


def main(argv: list[str]) -> int:
    """Print the schema, or compare two schema files."""
    if not argv:
        json.dump(build(), sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
        return 0
    if len(argv) != 2:
        sys.stderr.write("usage: python -m loopd_protocol.schema [OLD.json NEW.json]\n")
        return 2
    documents = []
    for name in argv:
        with open(name, encoding="utf-8") as file:
            documents.append(json.load(file))
    found = compare(*documents)
    for change in found:
        sys.stdout.write(f"{'breaking' if change.breaking else 'compatible'}: {change.path}: {change.what}\n")
    return 1 if any(change.breaking for change in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
