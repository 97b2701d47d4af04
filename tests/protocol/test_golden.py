"""Bytes of every release stay readable for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loopd_protocol import codec, schema
from tests.golden.examples import CORPUS
from tests.golden.write import ROOT, write

RELEASES = sorted(path.name for path in ROOT.iterdir())
NEWEST = RELEASES[-1]


def lines(release: str, name: str) -> list[bytes]:
    return (ROOT / release / f"{name}.ndjson").read_bytes().splitlines()


def decode(name: str, line: bytes) -> Any:
    match name:
        case "client":
            return codec.decode_client_frame(line)
        case "server":
            return codec.decode_server_frame(line)
        case "commands":
            return codec.decode_command(line)
        case _:
            return codec.decode_event(json.loads(line)["k"], line)


def keeps(old: Any, new: Any) -> bool:
    """Everything that was said is still there; more may be."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and keeps(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(keeps, old, new))
    return bool(old == new)


def whole(node: Any) -> Any:
    """Plain objects with every field, also those that are left out because they have their default."""
    if isinstance(node, msgspec.Struct):
        config = node.__struct_config__
        fields = {f.encode_name: whole(getattr(node, f.name)) for f in msgspec.structs.fields(node)}
        return ({config.tag_field: config.tag} if config.tag_field else {}) | fields
    if isinstance(node, msgspec.Raw):
        return msgspec.json.decode(node)
    if isinstance(node, dict):
        return {key: whole(value) for key, value in node.items()}
    return [whole(value) for value in node] if isinstance(node, list | tuple) else node


@pytest.mark.parametrize("name", CORPUS)
@pytest.mark.parametrize("release", RELEASES)
def test_every_line_of_every_release_decodes_and_loses_nothing(release: str, name: str):
    found = lines(release, name)
    assert found
    for line in found:
        decoded = decode(name, line)
        assert not isinstance(decoded, codec.UnknownEvent), line
        assert keeps(json.loads(line), whole(decoded)), line
        again = decode(name, msgspec.json.encode(decoded))
        assert whole(again) == whole(decoded)


@pytest.mark.parametrize("name", CORPUS)
def test_the_newest_corpus_has_every_type(name: str):
    tag, known = CORPUS[name]
    have = {json.loads(line)[tag] for line in lines(NEWEST, name)}
    assert have >= set(known), f"python -m tests.golden.write {NEWEST} --add"


@pytest.mark.parametrize("release", RELEASES)
def test_no_release_is_broken_by_the_present_schema(release: str):
    old = json.loads((ROOT / release / "schema.json").read_text(encoding="utf-8"))
    assert schema.breaking(old, schema.build()) == []


def test_the_writer_never_overwrites(tmp_path: Path):
    write("9.9", root=tmp_path)
    with pytest.raises(FileExistsError, match="stay as they are"):
        write("9.9", root=tmp_path)
    path = tmp_path / "9.9" / "commands.ndjson"
    kept = [line for line in path.read_bytes().splitlines() if b'"t":"send"' not in line]
    path.write_bytes(b"\n".join(kept) + b"\n")
    write("9.9", add=True, root=tmp_path)
    after = path.read_bytes().splitlines()
    assert after[: len(kept)] == kept
    assert all(b'"t":"send"' in line for line in after[len(kept) :])
    assert len(after) > len(kept)
