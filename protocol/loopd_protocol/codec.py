"""Bytes of one frame to messages and back, in two stages, without a socket.

First the outer frame, with the command or payload left as raw bytes; then the body, by its own
tag. Commands are strict, events lenient, and a kind that is not known is passed on undecoded.
Whatever bytes come in, the only exception that comes out is `Refused`.
"""

from __future__ import annotations

import difflib
import json
import re
import struct
from collections.abc import Iterable
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from loopd_protocol.commands import COMMAND_TYPES, AnyCommand, Command
from loopd_protocol.errors import Refused
from loopd_protocol.events import EVENT_TYPES, Event
from loopd_protocol.frames import (
    CLIENT_FRAMES,
    DEPTH_LIMIT,
    SERVER_FRAMES,
    AnyClientFrame,
    AnyServerFrame,
    ClientFrame,
    ServerFrame,
)

Encoding = Literal["json", "msgpack"]


class UnknownEvent(msgspec.Struct, frozen=True):
    """A payload of a kind that this version does not know: the bytes, untouched."""

    kind: str
    body: bytes


class _Tag(msgspec.Struct):
    t: Any = None


class _Id(msgspec.Struct):
    id: Any = None


_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_client = msgspec.json.Decoder(AnyClientFrame)
_server = msgspec.json.Decoder(AnyServerFrame)
_command = msgspec.json.Decoder(AnyCommand)
_tag = msgspec.json.Decoder(_Tag)
_id = msgspec.json.Decoder(_Id)
_events: dict[str, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(cls) for kind, cls in EVENT_TYPES.items()
}
_T = TypeVar("_T")

# -- what is checked before anything is parsed ------------------------------------------------

# A string, also one that never ends: so the search stays linear whatever the bytes are.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def check_depth(data: bytes, limit: int = DEPTH_LIMIT) -> None:
    """Refuse nesting deeper than `limit` without parsing.

    Brackets inside strings do not count. Innermost pairs are taken away once for each level, so
    the cost is at most `limit` passes over the brackets alone.

    Raises:
        Refused: `bad_frame`, also when the brackets do not match.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    brackets = _STRING.sub(b"", data).translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(limit):
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            break
        brackets = left
    if brackets:
        raise Refused("bad_frame", f"nesting is deeper than {limit} levels or brackets do not match")


def check_text(data: bytes) -> None:
    """Refuse bytes that are not UTF-8. Raw bodies are passed on unread, so it is checked here."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise Refused("bad_frame", f"byte {error.start} is not UTF-8") from None


def check_keys(data: bytes) -> None:
    """Refuse an object that names a key twice: readers disagree on which one counts.

    Most frames have no string twice, neither as key nor as value, except the `t` of a frame and the
    `t` of the command in it; if those two belonged to one object, the other would have none and is
    refused for that. So one split answers for them; the others are parsed once more.
    """
    if b"\\" not in data:
        strings = data.split(b'"')[1::2]
        spare = len(strings) - len(set(strings))
        if spare == 0 or (spare == 1 and strings.count(b"t") == 2 and strings.count(b"c") == 1):
            return
    try:
        json.loads(data, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        raise Refused("bad_frame", f"not JSON: {error}") from None


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise Refused("bad_frame", f"key {key[:64]!r} is given twice")
        seen.add(key)


# -- decoding ---------------------------------------------------------------------------------

_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>.*?)`(?: - at `[^`]*`)?\Z", re.DOTALL)
_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")


def decode_client_frame(data: bytes) -> ClientFrame:
    """Decode the outer frame of a client; the command in a `cmd` stays raw.

    Raises:
        Refused: `bad_frame`, `unknown_type`, `unknown_field` or `invalid`.
    """
    check_text(data)
    check_depth(data)
    frame: ClientFrame = _decode(_client, data, CLIENT_FRAMES, "frame")
    check_keys(data)
    return frame


def decode_server_frame(data: bytes) -> ServerFrame:
    """Decode a frame of the server; the payload of an `ev` stays raw.

    Raises:
        Refused: as for `decode_client_frame`; `unknown_type` for a frame of a newer server.
    """
    check_text(data)
    check_depth(data)
    frame: ServerFrame = _decode(_server, data, SERVER_FRAMES, "frame")
    return frame


def decode_command(raw: bytes | msgspec.Raw) -> Command:
    """Decode a command strictly.

    Raises:
        Refused: `unknown_type` (names the nearest), `unknown_field`, `invalid` (with the path in the
            command) or `bad_frame`.
    """
    data = bytes(raw)
    command: Command = _decode(_command, data, COMMAND_TYPES, "command")
    return command


def decode_event(kind: str, body: bytes | msgspec.Raw) -> Event | UnknownEvent:
    """Decode a payload by its kind; unknown fields are skipped, unknown kinds passed on.

    Raises:
        Refused: `bad_frame` or `invalid` when a known kind does not have its form.
    """
    decoder = _events.get(kind)
    data = bytes(body)
    if decoder is None:
        return UnknownEvent(kind, data)
    event: Event = _decode(decoder, data, EVENT_TYPES, "event")
    return event


def frame_id(data: bytes) -> str | None:
    """The `id` of a frame that was refused, if it can be read, so that the answer finds its way."""
    try:
        found = _id.decode(data).id
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if isinstance(found, str) and 1 <= len(found) <= 64 else None


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _decode(decoder: msgspec.json.Decoder[_T], data: bytes, known: dict[str, Any], noun: str) -> _T:
    try:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            # The wrong value may come before bytes that are no JSON at all: then that is said.
            _refuse(str(error), data, known, noun)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("bad_frame", f"{noun} is not JSON: {str(error)[:200]}") from None
    except RecursionError:
        raise Refused("bad_frame", f"nesting is deeper than {DEPTH_LIMIT} levels") from None


def _refuse(text: str, data: bytes, known: dict[str, Any], noun: str) -> NoReturn:
    """Say what was wrong with a `noun` that is JSON but has the wrong form."""
    if not data.lstrip(b" \t\r\n").startswith(b"{"):
        raise Refused("bad_frame", f"{noun} is not a JSON object")
    tag = _tag.decode(data).t
    if noun != "event":
        if not isinstance(tag, str):
            met = "no type `t`" if tag is None else f"{type(tag).__name__} as its type `t`"
            raise Refused("unknown_type", f"{noun} has {met}; expected a string", path="$.t")
        if tag not in known:
            hint = nearest(tag, known)
            raise Refused("unknown_type", f"no {noun} has the type {tag[:100]!r}{hint}", path="$.t")
    at = _PATH.search(text)
    path = at["path"] if at else "$"
    unknown = _UNKNOWN_FIELD.match(text)
    if unknown:
        name = unknown["name"][:100]
        raise Refused("unknown_field", f"{noun} has no field {name!r} at {path}", path=f"{path}.{name}")
    met = text[: at.start()] if at else text
    raise Refused("invalid", f"{met[:1].lower()}{met[1:500]} at {path}", path=path)


# -- encoding ---------------------------------------------------------------------------------


def encode_frame(frame: msgspec.Struct, enc: Encoding = "json") -> bytes:
    """A whole frame as bytes on the wire: with its LF, or with its length before it."""
    if enc == "json":
        return _json.encode(frame) + b"\n"
    # Raw bodies hold JSON, so a frame becomes msgpack by way of plain objects.
    return pack(_json.encode(frame))


def encode_body(body: msgspec.Struct) -> bytes:
    """A command or payload as JSON bytes, to be put into a frame raw."""
    return _json.encode(body)


def raw(body: msgspec.Struct) -> msgspec.Raw:
    """A command or payload for the raw field of a frame."""
    return msgspec.Raw(_json.encode(body))


def pack(data: bytes) -> bytes:
    """A JSON frame as a msgpack frame with its u32-BE length."""
    body = _msgpack.encode(msgspec.json.decode(data))
    return len(body).to_bytes(4, "big") + body


def unpack(data: bytes) -> bytes:
    """A msgpack frame (without its length) as the JSON frame that means the same.

    One meaning for both encodings: everything behind this function sees JSON.

    Raises:
        Refused: `bad_frame` for what JSON cannot say (binary, extension types, NaN, keys that are no
            strings), for keys given twice, nesting over the limit, and bytes that are no msgpack.
    """
    _scan_msgpack(data)
    try:
        return _json.encode(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise Refused("bad_frame", f"frame is not msgpack: {error}") from None


_FIXED: dict[int, int] = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8} | {
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
}
_FLOATS = {0xCA: ">f", 0xCB: ">d"}
_SIZED = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}


def _scan_msgpack(data: bytes) -> None:
    """Walk over msgpack without recursion and refuse what JSON cannot say."""
    stack: list[tuple[int, set[bytes] | None]] = []  # items left, keys of a map so far
    at, size = 0, len(data)
    while True:
        if at >= size:
            raise Refused("bad_frame", "msgpack ends too early")
        head = data[at]
        at += 1
        left, keys = stack[-1] if stack else (1, None)
        is_key = keys is not None and left % 2 == 0
        opened: tuple[int, set[bytes] | None] | None = None
        text = -1
        if head <= 0x7F or head >= 0xE0:
            pass
        elif head in _FIXED:
            at += _FIXED[head]
        elif 0xA0 <= head <= 0xBF:
            text = head & 0x1F
        elif head in _SIZED:
            text, at = int.from_bytes(data[at : at + _SIZED[head]], "big"), at + _SIZED[head]
        elif 0x80 <= head <= 0x8F:
            opened = ((head & 0x0F) * 2, set())
        elif 0x90 <= head <= 0x9F:
            opened = (head & 0x0F, None)
        elif head in _ARRAYS:
            opened, at = (int.from_bytes(data[at : at + _ARRAYS[head]], "big"), None), at + _ARRAYS[head]
        elif head in _MAPS:
            opened, at = (int.from_bytes(data[at : at + _MAPS[head]], "big") * 2, set()), at + _MAPS[head]
        elif head in _FLOATS:
            piece, at = data[at : at + struct.calcsize(_FLOATS[head])], at + struct.calcsize(_FLOATS[head])
            value = struct.unpack(_FLOATS[head], piece)[0] if len(piece) in {4, 8} else 0.0
            if value - value != 0:  # NaN and the infinities
                raise Refused("bad_frame", "NaN and infinity are no values of this protocol")
        else:
            raise Refused("bad_frame", f"msgpack type {head:#x} has no meaning in JSON")
        if is_key:
            if text < 0:
                raise Refused("bad_frame", "a map key is not a string")
            name = data[at : at + text]
            assert keys is not None
            if name in keys:
                raise Refused("bad_frame", f"key {name[:64]!r} is given twice")
            keys.add(name)
        at += max(text, 0)
        if at > size:
            raise Refused("bad_frame", "msgpack ends too early")
        if stack:
            stack[-1] = (left - 1, keys)
        if opened:
            if len(stack) >= DEPTH_LIMIT:
                raise Refused("bad_frame", f"nesting is deeper than {DEPTH_LIMIT} levels")
            stack.append(opened)
        while stack and stack[-1][0] == 0:
            stack.pop()
        if not stack:
            break
    if at != size:
        raise Refused("bad_frame", f"{size - at} bytes follow the msgpack object")
