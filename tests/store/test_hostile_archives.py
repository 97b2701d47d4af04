"""Archives of somebody who means harm: refused with a stable code, and nothing is left behind."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import struct
import warnings
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopd.store.archive import RATIO_MAX, UNPACKED_ALWAYS, Archive
from loopd.store.archive_check import verify
from loopd.store.export import BLOBS, BOOTS, JOURNAL, LINKS, MANIFEST, SESSIONS, SIGNATURE
from loopd.store.shelf import Shelf
from loopd_protocol.errors import Refused
from tests.store.test_export import Made


class Files(dict[str, bytes]):
    """Files of an archive by name; small where hypothesis shows it."""

    def __repr__(self) -> str:
        return "files"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def files(made: Made) -> dict[str, bytes]:
    with zipfile.ZipFile(made.export("one", sid="ses_1", links=True)) as archive:
        return Files((name, archive.read(name)) for name in archive.namelist())


def write(
    target: Path,
    files: dict[str, bytes],
    *,
    how: int = zipfile.ZIP_DEFLATED,
    more: dict[str, bytes] | None = None,
) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(target, "w", how) as archive:
        warnings.simplefilter("ignore")  # a name twice is just what is wanted
        for name, data in (*files.items(), *(more or {}).items()):
            archive.writestr(name, data)
    return target


def resealed(
    files: dict[str, bytes],
    changed: dict[str, bytes],
    change: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, bytes]:
    """With other files under a manifest that fits them, unsigned: whoever made it has no key."""
    manifest = json.loads(files[MANIFEST])
    fresh = {name: data for name, data in {**files, **changed}.items() if name != SIGNATURE}
    for name, data in fresh.items():
        if name in manifest["files"]:
            manifest["files"][name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    manifest.pop("key", None)
    change(manifest)
    return fresh | {MANIFEST: json.dumps(manifest).encode()}


def refused(made: Made, target: Path, tmp_path: Path) -> Refused:
    """What the import says; nothing may have been kept."""
    shelf = Shelf(tmp_path / "imports", made.keys)

    async def check_in() -> None:
        await shelf.check_in(target, by="uid:1", now_ms=1, taken=lambda _: False)

    with pytest.raises(Refused) as caught:
        anyio.run(check_in)
    assert not shelf.entries
    assert not (tmp_path / "imports").exists() or not list((tmp_path / "imports").iterdir())
    assert len(caught.value.message) < 1_000
    assert str(tmp_path) not in caught.value.message, "where the daemon keeps it is nobody's business"
    return caught.value


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


def joined(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value, separators=(",", ":")).encode() + b"\n" for value in values)


def session(**fields: Any) -> Callable[[Files], dict[str, bytes]]:
    def change(files: Files) -> dict[str, bytes]:
        return resealed(files, {SESSIONS: joined([lines(files[SESSIONS])[0] | fields])})

    return change


def row(number: int, **fields: Any) -> Callable[[Files], dict[str, bytes]]:
    def change(files: Files) -> dict[str, bytes]:
        rows = lines(files[JOURNAL])
        rows[number] |= fields
        return resealed(files, {JOURNAL: joined(rows)})

    return change


def manifest(**fields: Any) -> Callable[[Files], dict[str, bytes]]:
    return lambda files: resealed(files, {}, lambda said: said.update(fields))


def raw(name: str, data: bytes) -> Callable[[Files], dict[str, bytes]]:
    return lambda files: resealed(files, {name: data})


def without(name: str) -> Callable[[Files], dict[str, bytes]]:
    return lambda files: {each: data for each, data in files.items() if each != name}


def _bodiless(files: Files) -> dict[str, bytes]:
    rows = lines(files[JOURNAL])
    rows[1].pop("body")
    return resealed(files, {JOURNAL: joined(rows)})


DEEP = b"[" * 100_000 + b"]" * 100_000
CASES: dict[str, tuple[Callable[[Files], dict[str, bytes]], str]] = {
    "a path out of the folder": (lambda files: {**files, "../../evil": b"x"}, "invalid"),
    "an absolute path": (lambda files: {**files, "/etc/evil": b"x"}, "invalid"),
    "a path with a drive": (lambda files: {**files, "C:\\evil": b"x"}, "invalid"),
    "a folder": (lambda files: {**files, "blobs/": b""}, "invalid"),
    "a blob that nobody listed": (lambda files: {**files, f"{BLOBS}{'cd' * 32}": b"x"}, "corrupt"),
    "no manifest": (without(MANIFEST), "invalid"),
    "no journal": (without(JOURNAL), "corrupt"),
    "no sessions": (without(SESSIONS), "corrupt"),
    "no signature though it names a key": (without(SIGNATURE), "corrupt"),
    "no links though it speaks of them": (without(LINKS), "corrupt"),
    "a manifest of the deep": (lambda files: {**files, MANIFEST: DEEP}, "invalid"),
    "a log that is a number": (manifest(log=5), "invalid"),
    "a log with a path": (manifest(log="../../x"), "invalid"),
    "files as a list": (manifest(files=[1]), "invalid"),
    "a file without digest": (manifest(files={JOURNAL: 5}), "invalid"),
    "a range without end": (manifest(range={"first": 10**40, "last": 1}), "invalid"),
    "counts that are none": (manifest(counts=[]), "invalid"),
    "a scope of its own": (manifest(scope=["log"]), "invalid"),
    "a hash that is none": (manifest(previous_hash="zz", scope="log"), "invalid"),
    "a newer format": (manifest(v=2), "invalid"),
    "another format": (manifest(format="zip"), "invalid"),
    "a session without number": (session(num=None), "corrupt"),
    "a session's number as text": (session(num="x"), "corrupt"),
    "a number below one": (session(num=-1), "corrupt"),
    "a number without end": (session(num=2**70), "corrupt"),
    "a name with a path": (session(name="../../x"), "corrupt"),
    "a name with an escape": (session(name="\x1b[31mred"), "corrupt"),
    "a name without end": (session(name="x" * 5_000), "corrupt"),
    "an id with a path": (session(sid="../../etc/passwd"), "corrupt"),
    "the id of another session": (session(sid="ses_9"), "corrupt"),
    "a beginning that is none": (session(first=3), "corrupt"),
    "sessions of the deep": (raw(SESSIONS, DEEP), "corrupt"),
    "a session twice": (
        lambda files: resealed(files, {SESSIONS: files[SESSIONS] + files[SESSIONS]}), "corrupt",
    ),
    "no session at all": (raw(SESSIONS, b""), "corrupt"),
    "boots that are none": (raw(BOOTS, b'{"n":"x"}\n'), "corrupt"),
    "a row without content": (_bodiless, "corrupt"),
    "a row of the deep": (raw(JOURNAL, b'{"seq":' + DEEP + b"}\n"), "corrupt"),
    "a body of the deep": (
        lambda files: resealed(files, {JOURNAL: files[JOURNAL].replace(b'"body":{', b'"body":{"x":' + DEEP + b",", 1)}),
        "corrupt",
    ),
    "a kind without end": (row(1, kind="x" * 70_000), "corrupt"),
    "a number that no row has": (row(1, seq=2**70), "corrupt"),
    "a negative place": (row(1, ss=-1), "corrupt"),
    "a hash of one byte": (row(1, h="aa", sh="bb"), "corrupt"),
    "base64 that is none": (row(1, body_b64="!!"), "corrupt"),
    "a manifest of another session": (lambda files: {**files, MANIFEST: files["other"]}, "corrupt"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_archive_that_harms_is_refused_and_nothing_is_kept(
    made: Made, files: Files, tmp_path: Path, case: str
) -> None:
    change, code = CASES[case]
    if "another session" in case and "manifest" in case:
        with zipfile.ZipFile(made.export("two", sid="ses_2")) as other:
            changed = {**files, MANIFEST: other.read(MANIFEST), SIGNATURE: other.read(SIGNATURE)}
    else:
        changed = change(files)
    assert refused(made, write(tmp_path / "x.zip", changed), tmp_path).code == code


def test_a_name_twice_is_refused(made: Made, files: Files, tmp_path: Path) -> None:
    target = write(tmp_path / "x.zip", files)
    with warnings.catch_warnings(), zipfile.ZipFile(target, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(JOURNAL, b"")
    assert refused(made, target, tmp_path).code == "invalid"


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(made: Made, files: Files, tmp_path: Path, how: int) -> None:
    assert refused(made, write(tmp_path / "x.zip", files, how=how), tmp_path).code == "invalid"


@pytest.mark.parametrize("name", [JOURNAL, SESSIONS, MANIFEST, f"{BLOBS}{'ab' * 32}"])
def test_a_bomb_is_refused_before_it_is_unpacked(made: Made, files: Files, tmp_path: Path, name: str) -> None:
    target = tmp_path / "x.zip"
    piece = bytes(1 << 20)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in files.items():
            if each != name:
                archive.writestr(each, data)
        with archive.open(name, "w") as out:
            for _ in range((UNPACKED_ALWAYS >> 20) + 1):
                out.write(piece)
    assert target.stat().st_size * RATIO_MAX < UNPACKED_ALWAYS * 4, "it is small"
    assert refused(made, target, tmp_path).code == "invalid"


def test_a_size_that_lies_is_found(made: Made, files: Files, tmp_path: Path) -> None:
    target = write(tmp_path / "x.zip", {**files, SESSIONS: bytes(1 << 20)})
    data = bytearray(target.read_bytes())
    place = data.rfind(SESSIONS.encode()) - 46 + 24  # uncompressed size in the central directory
    data[place : place + 4] = struct.pack("<I", 10)
    target.write_bytes(data)
    assert refused(made, target, tmp_path).code == "corrupt"


def test_a_file_that_is_encrypted_or_cut_is_refused(made: Made, files: Files, tmp_path: Path) -> None:
    target = write(tmp_path / "x.zip", files)
    whole = target.read_bytes()
    for cut in (0, 100, len(whole) // 2, len(whole) - 50):
        target.write_bytes(whole[:cut])
        assert refused(made, target, tmp_path).code == "invalid"
    locked = bytearray(whole)
    place = locked.find(b"PK\x01\x02")
    while place >= 0:
        locked[place + 8] |= 1
        place = locked.find(b"PK\x01\x02", place + 4)
    target.write_bytes(locked)
    assert refused(made, target, tmp_path).code == "invalid"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=8)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([MANIFEST, SESSIONS, BOOTS, JOURNAL, LINKS, SIGNATURE]),
    places=st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500)),
    inside=st.booleans(),
    value=JSON,
)
def test_any_value_anywhere_is_refused_or_found_and_never_raises_anything_else(
    files: Files, tmp_path: Path, name: str, places: tuple[int, int, int], inside: bool, value: Any
) -> None:
    values = [json.loads(files[name])] if name in {MANIFEST, SIGNATURE} else lines(files[name])
    holder = values[places[0] % len(values)]
    path = sorted(holder)[places[1] % len(holder)]
    if inside and isinstance(holder[path], dict) and holder[path]:
        holder = holder[path]
        path = sorted(holder)[places[2] % len(holder)]
    holder[path] = value
    changed = joined(values)
    fresh = {**files, name: changed} if name in {MANIFEST, SIGNATURE} else resealed(files, {name: changed})
    target = write(tmp_path / "x.zip", fresh)
    try:
        with Archive(target) as archive:
            proof = verify(archive)
    except Refused as refusal:
        code = refusal.code
    else:
        code = "whole" if proof["ok"] else "findings"
        json.dumps(proof)
    assert code in {"invalid", "corrupt", "whole", "findings"}


# -- links ------------------------------------------------------------------------------------------


def proof_of(target: Path) -> dict[str, Any]:
    with Archive(target) as archive:
        return verify(archive)


def test_links_lead_from_the_first_event_to_the_anchor(made: Made, files: Files) -> None:
    proof = proof_of(made.export("one", sid="ses_1", links=True))
    said = json.loads(files[MANIFEST])["links"]
    assert proof["ok"]
    assert proof["links"]["tied_to"] == said["anchor"] == said["last"]
    own = len(lines(files[JOURNAL]))
    assert proof["links"]["foreign"] == said["foreign"] == said["last"] - said["first"] + 1 - own > 0
    for line in lines(files[LINKS]):
        assert set(line) == {"seq", "row"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_links_that_were_changed_are_found_also_under_a_manifest_that_fits_them(
    files: Files, tmp_path: Path, data: st.DataObject
) -> None:
    links = lines(files[LINKS])
    place = data.draw(st.integers(0, len(links) - 1))
    match data.draw(st.sampled_from(["drop", "swap", "double", "bytes", "number"])):
        case "drop":
            del links[place]
        case "swap":
            other = (place + 1) % len(links)
            links[place], links[other] = links[other], links[place]
        case "double":
            links.insert(place, links[place])
        case "bytes":
            text = links[place]["row"]
            at = data.draw(st.integers(0, len(text) - 5))
            links[place]["row"] = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        case _:
            links[place]["seq"] += 1
    target = write(tmp_path / "x.zip", resealed(files, {LINKS: joined(links)}))
    proof = proof_of(target)
    assert not proof["ok"]
    assert {"links", "anchor"} & {finding["check"] for finding in proof["findings"]}


def test_an_event_of_the_session_cannot_hide_among_the_links(files: Files, tmp_path: Path) -> None:
    """Its last event is left out of the journal and handed on as if it were somebody else's."""
    rows = lines(files[JOURNAL])
    with Archive(write(tmp_path / "whole.zip", files)) as archive:
        last = list(archive.rows())[-1]
    link = {"seq": last.seq, "row": base64.b64encode(last.digest()).decode()}
    links = sorted([*lines(files[LINKS]), link], key=lambda each: each["seq"])
    before = rows[-2]
    said = lines(files[SESSIONS])[0]
    said |= {"last": {"seq": before["seq"], "ss": before["ss"]}, "head_hash": before["sh"]}

    def change(manifest: dict[str, Any]) -> None:
        manifest["counts"]["events"] -= 1
        manifest["range"]["last"] = before["seq"]
        manifest["head"] = {"seq": before["seq"], "hash": before["h"]}

    fresh = resealed(
        files, {JOURNAL: joined(rows[:-1]), SESSIONS: joined([said]), LINKS: joined(links)}, change
    )
    found = proof_of(write(tmp_path / "x.zip", fresh))["findings"]
    assert any("belongs to the session" in finding["what"] for finding in found), found


def test_without_an_anchor_behind_it_the_links_say_so(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.keys.clear()
    with contextlib.closing(sqlite3.connect(made.path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM anchor")
    proof = proof_of(made.export("none", sid="ses_1", links=True))
    assert proof["ok"]
    assert proof["links"]["tied_to"] is None
