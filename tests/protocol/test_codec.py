"""What bytes become: two stages, strict commands, lenient events, one kind of exception."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopd_protocol import codec
from loopd_protocol.commands import COMMAND_TYPES, Send, Suspend
from loopd_protocol.errors import ERRORS, Refused
from loopd_protocol.events import EVENT_TYPES, GateChanged
from loopd_protocol.frames import CLIENT_FRAMES, SERVER_FRAMES, Cmd, Ev, Hello, Ok
from loopd_protocol.holds import UserSuspend
from tests.protocol.strategies import any_of, json_values


def refusal(call: Any, *args: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value


def outcome(read: Any, data: bytes) -> str:
    """`ok` or the code of the refusal; any other exception fails the test."""
    try:
        read(data)
    except Refused as refused:
        return refused.code
    return "ok"


def command(body: str) -> Refused:
    return refusal(codec.decode_command, body.encode())


def frame(body: str | bytes) -> Refused:
    return refusal(codec.decode_client_frame, body.encode() if isinstance(body, str) else body)


def test_a_command_frame_keeps_its_command_raw_until_the_second_stage():
    line = b'{"t":"cmd","id":"7","key":"01JK","if_rev":4,"c":{"t":"suspend","sid":"ses_a","mode":"kill"}}'
    outer = codec.decode_client_frame(line)
    assert isinstance(outer, Cmd)
    assert (outer.id, outer.key, outer.if_rev, outer.if_turn) == ("7", "01JK", 4, None)
    assert codec.decode_command(outer.c) == Suspend(sid="ses_a", mode="kill")


def test_a_mistyped_field_of_a_command_is_refused_with_its_path():
    met = command('{"t":"suspend","sid":"ses_a","untill_ms":5}')
    assert (met.code, met.path) == ("unknown_field", "$.untill_ms")
    met = command('{"t":"session.create","driver":{"kind":"scripted","script":"f","onec":true}}')
    assert (met.code, met.path) == ("unknown_field", "$.driver.onec")
    met = command('{"t":"batch","selector":{"label":{}},"cmd":{"t":"suspend","sid":"a"}}')
    assert (met.code, met.path) == ("unknown_field", "$.selector.label")


def test_a_mistyped_precondition_of_a_frame_is_refused():
    met = frame('{"t":"cmd","id":"1","if_revv":3,"c":{"t":"daemon.status"}}')
    assert (met.code, met.path) == ("unknown_field", "$.if_revv")
    met = frame('{"t":"sub","id":"1","sel":{"kind":["gate.*"]}}')
    assert (met.code, met.path) == ("unknown_field", "$.sel.kind")


def test_hello_and_ping_skip_fields_of_newer_clients():
    hello = codec.decode_client_frame(b'{"t":"hello","v":[1,9],"zstd":true,"client":{"name":"n","os":"x"}}')
    assert hello == Hello(v=(1, 9), client=msgspec.structs.replace(Hello().client, name="n"))
    assert codec.decode_client_frame(b'{"t":"ping","nonce":4}') == CLIENT_FRAMES["ping"]()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"t":"send","sid":"ses_a","text":5}', "$.text"),
        ('{"t":"send","sid":"ses_a","text":""}', "$.text"),
        ('{"t":"send","sid":"../etc","text":"x"}', "$.sid"),
        ('{"t":"send","sid":"ses_a\\n","text":"x"}', "$.sid"),
        ('{"t":"suspend","sid":"ses_a","until_ms":-1}', "$.until_ms"),
        ('{"t":"suspend","sid":"ses_a","until_ms":9007199254740993}', "$.until_ms"),
        ('{"t":"suspend","sid":"ses_a","until_ms":99999999999999999999999999}', "$.until_ms"),
        ('{"t":"suspend","sid":"ses_a","until_ms":1.5}', "$.until_ms"),
        ('{"t":"suspend","sid":"ses_a","until_ms":"5"}', "$.until_ms"),
        ('{"t":"suspend","sid":"ses_a","mode":"gently"}', "$.mode"),
        ('{"t":"suspend"}', "$"),
        ('{"t":"interrupt","sid":"a","for_ms":999}', "$.for_ms"),
    ],
)
def test_wrong_types_and_bounds_are_refused_with_their_path(body: str, path: str):
    met = command(body)
    assert (met.code, met.path) == ("invalid", path)


def test_an_unknown_type_is_refused_and_the_nearest_is_named():
    met = command('{"t":"suspnd","sid":"ses_a"}')
    assert met.code == "unknown_type"
    assert "'suspend'" in met.message
    assert "'hello'" in frame('{"t":"helo"}').message
    assert frame('{"t":"\u0000"}').code == "bad_frame"
    for body in ("{}", '{"t":null}', '{"t":7}', '{"sid":"ses_a"}'):
        assert command(body).code == "unknown_type", body


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b'"hello"',
        b"17",
        b"null",
        b'{"t":"ping"',
        b'{"t":"ping"}}',
        b'{"t":"ping"} {"t":"ping"}',
        b'{"t":"ping","id":NaN}',
        b'{"t":"ping","id":Infinity}',
        b'{"t":"ping","x":-}',
        b"\xff\xfe{}",
        b'{"t":"ping","id":"\xc3\x28"}',
        b'{"t":"cmd","id":"1","c":{"t":"send","sid":"a","text":"\xed\xa0\x80"}}',
        b'{"t":"ping","id":"\\ud800"}',
        b'\xef\xbb\xbf{"t":"ping"}',
        b"{'t':'ping'}",
        b'{"t":"ping","id":5 garbage',
        b'{"t":"cmd","c":{} garbage',
    ],
)
def test_what_is_no_json_object_is_a_bad_frame(line: bytes):
    assert frame(line).code == "bad_frame"


@pytest.mark.parametrize(
    "line",
    [
        b'{"t":"ping","t":"ping"}',
        b'{"t":"cmd","id":"1","id":"2","c":{"t":"daemon.status"}}',
        b'{"t":"cmd","id":"1","c":{"t":"suspend","sid":"a","until_ms":1,"until_ms":2}}',
        b'{"t":"cmd","id":"1","c":{"t":"suspend","sid":"a","\\u0074":"kill"}}',
        b'{"t":"cmd","id":"1","c":{"t":"suspend","t":"kill","sid":"a"}}',
        b'{"t":"cmd","t":"cmd","id":"1","c":{"t":"daemon.status"}}',
        b'{"t":"cmd","id":"1","c":{"t":"daemon.status"},"c":{"t":"daemon.stop"}}',
    ],
)
def test_a_key_given_twice_is_a_bad_frame(line: bytes):
    assert frame(line).code == "bad_frame"
    assert "twice" in frame(line).message


def test_a_key_that_stands_twice_in_different_objects_is_none_given_twice():
    line = {
        "t": "cmd",
        "id": "1",
        "c": {
            "t": "session.create",
            "driver": {"kind": "scripted", "script": 'x": "script":'},
            "name": "id",
            "labels": {"t": "t", "id": "c", "name": '"t":'},
        },
    }
    outer = codec.decode_client_frame(json.dumps(line).encode())
    assert isinstance(outer, Cmd)
    assert codec.decode_command(outer.c).labels == line["c"]["labels"]


def nested(depth: int) -> bytes:
    """A frame with brackets `depth` deep."""
    arrays = depth - 2
    return b'{"t":"cmd","id":"1","c":{"t":' + b"[" * arrays + b"]" * arrays + b"}}"


def test_nesting_of_64_levels_passes_and_65_are_refused():
    assert isinstance(codec.decode_client_frame(nested(64)), Cmd)
    assert frame(nested(65)).code == "bad_frame"


def test_brackets_in_strings_are_no_nesting():
    text = "[{" * 5_000 + '\\" [[[[ ' + "\\\\"
    outer = codec.decode_client_frame(
        json.dumps({"t": "cmd", "id": "1", "c": {"t": "send", "sid": "a", "text": text}}).encode()
    )
    assert isinstance(outer, Cmd)
    assert codec.decode_command(outer.c) == Send(sid="a", text=text)


def test_many_shallow_brackets_are_no_nesting():
    refs = json.dumps({"t": "sub", "id": "1", "sel": {"sids": ["a"] * 900}, "snapshot": False})
    assert codec.decode_client_frame(refs.encode()).sel.sids == ("a",) * 900
    codec.check_depth(b"[" + b"[],{}," * 100_000 + b"1]")


@pytest.mark.parametrize("bomb", [b"[" * 1_000_000, b'{"a":' * 200_000, b'{"t":[' + b"[{" * 500_000])
def test_a_nesting_bomb_is_refused_before_it_is_parsed(bomb: bytes):
    assert frame(bomb).code == "bad_frame"
    assert "64" in frame(bomb).message


def test_recursion_of_the_parser_is_no_crash():
    deep = b'{"t":"suspend","sid":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert refusal(codec.decode_command, deep).code == "bad_frame"


def test_an_event_of_an_unknown_kind_is_passed_on_undecoded():
    body = b'{"k":"gate.melted","why":[1,2]}'
    assert codec.decode_event("gate.melted", body) == codec.UnknownEvent("gate.melted", body)


def test_an_event_with_unknown_fields_is_decoded_without_them():
    body = b'{"k":"gate.changed","gate":"open","cause":"deadline","by":"timer","gen":4,"mood":"fine"}'
    event = codec.decode_event("gate.changed", body)
    assert event == GateChanged(gate="open", cause="deadline", by="timer", gen=4)


def test_an_event_with_a_broken_body_is_refused():
    assert refusal(codec.decode_event, "gate.changed", b'{"k":"gate.changed"}').code == "invalid"
    assert refusal(codec.decode_event, "gate.changed", b"{").code == "bad_frame"


def test_holds_travel_in_events_as_they_are():
    event = GateChanged(
        gate="closed", cause="suspend", by="uid:1", gen=1, holds=(UserSuspend(by="uid:1", reason="r"),)
    )
    assert codec.decode_event(event.kind, codec.encode_body(event)) == event


def test_an_answer_always_says_whether_it_is_a_repetition():
    assert json.loads(codec.encode_frame(Ok(id="1", seq=4))) == {
        "t": "ok", "id": "1", "seq": 4, "rev": None, "dup": False, "r": {},
    }  # fmt: skip


def test_the_id_of_a_refused_frame_is_found_if_it_can_be_read():
    assert codec.frame_id(b'{"t":"zzz","id":"7"}') == "7"
    for line in (
        b"",
        b"[]",
        b'{"id":7}',
        b'{"id":""}',
        b'{"id":"' + b"x" * 65 + b'"}',
        b"\xff",
        b"[" * 9_999,
    ):
        assert codec.frame_id(line) is None


# -- msgpack ------------------------------------------------------------------------------------


def unpacked(value: Any) -> bytes:
    return codec.unpack(msgspec.msgpack.encode(value))


def test_a_msgpack_frame_means_the_same_as_its_json():
    value = {"t": "cmd", "id": "1", "c": {"t": "send", "sid": "ses_a", "text": "ü" * 300}, "if_rev": 70_000}
    packed, plain = unpacked(value), json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert packed == plain
    assert codec.pack(plain) == len(msgspec.msgpack.encode(value)).to_bytes(4) + msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    ("data", "met"),
    [
        (b"\x81\xa1t\xc4\x01x", "0xc4"),  # binary
        (b"\x81\xa1t\xd4\x01x", "0xd4"),  # extension
        (b"\x81\x01\x02", "key"),  # a number as key
        (b"\x82\xa1t\x01\xa1t\x02", "twice"),
        (b"\x81\xa1t\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "NaN"),
        (b"\x81\xa1t\xca\x7f\x80\x00\x00", "infinity"),
        (b"\x91" * 65 + b"\x01", "64"),
        (b"\xdd\xff\xff\xff\xff", "early"),
        (b"\x81\xa1t", "early"),
        (b"\xa5ab", "early"),
        (b"", "early"),
        (b"\x80\x80", "follow"),
        (b"\xc1", "0xc1"),
        (b"\x81\xa1t\xa1\xff", "msgpack"),
    ],
)
def test_msgpack_that_json_cannot_say_is_refused(data: bytes, met: str):
    found = refusal(codec.unpack, data)
    assert found.code == "bad_frame"
    assert met in found.message


def test_msgpack_nesting_of_64_levels_passes():
    assert codec.unpack(b"\x91" * 64 + b"\x01").count(b"[") == 64


# -- properties ----------------------------------------------------------------------------------


@given(any_of(COMMAND_TYPES))
def test_any_command_comes_back_as_it_went(sent: Any):
    assert codec.decode_command(codec.encode_body(sent)) == sent


@given(any_of(EVENT_TYPES))
def test_any_event_comes_back_as_it_went(sent: Any):
    assert codec.decode_event(sent.kind, codec.encode_body(sent)) == sent


@given(any_of(CLIENT_FRAMES), st.sampled_from(["json", "msgpack"]))
def test_any_client_frame_comes_back_as_it_went_in_both_encodings(sent: Any, enc: Any):
    data = codec.encode_frame(sent, enc)
    data = data[:-1] if enc == "json" else codec.unpack(data[4:])
    back = codec.decode_client_frame(data)
    assert msgspec.json.decode(codec.encode_frame(back)) == msgspec.json.decode(codec.encode_frame(sent))


@given(any_of(SERVER_FRAMES))
def test_any_server_frame_comes_back_as_it_went(sent: Any):
    back = codec.decode_server_frame(codec.encode_frame(sent)[:-1])
    if isinstance(sent, Ev):
        assert msgspec.json.decode(back.b) == msgspec.json.decode(sent.b)
        sent, back = (msgspec.structs.replace(each, b=msgspec.Raw(b"0")) for each in (sent, back))
        assert codec.encode_frame(sent) == codec.encode_frame(back)
    else:
        assert back == sent


@given(
    st.binary(max_size=300)
    | st.text(alphabet='{}[]":,\\ tcmdisubhelo01eE+-.\ud800', max_size=80).map(
        lambda s: s.encode("utf-8", "surrogatepass")
    )
)
@example(b"{" * 70)
def test_garbage_only_ever_raises_refused(data: bytes):
    readers = [
        codec.decode_client_frame,
        codec.decode_server_frame,
        codec.decode_command,
        codec.unpack,
        lambda body: codec.decode_event("turn.step", body),
    ]
    assert {outcome(read, data) for read in readers} <= {"ok", *ERRORS}
    codec.frame_id(data)


@given(st.sampled_from(sorted(COMMAND_TYPES)), st.dictionaries(st.text(max_size=6), json_values, max_size=4))
def test_any_object_as_a_command_is_decoded_or_refused(tag: str, more: dict[str, Any]):
    body = json.dumps({"t": tag, **more}).encode()
    assert outcome(codec.decode_command, body) in {"ok", "unknown_field", "invalid", "unknown_type"}


@given(json_values)
def test_the_depth_check_agrees_with_the_parser(value: Any):
    def depth(node: Any) -> int:
        if isinstance(node, dict):
            return 1 + max(map(depth, node.values()), default=0)
        return 1 + max(map(depth, node), default=0) if isinstance(node, list) else 0

    # The quick test counts brackets; enough of them beside it, so that the real one runs.
    data = json.dumps([value, [[]] * 70]).encode()
    deep = max(depth(value) + 1, 3)
    codec.check_depth(data, deep)
    with pytest.raises(Refused):
        codec.check_depth(data, deep - 1)


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.booleans())
def test_the_key_check_agrees_with_the_parser(value: dict[str, Any], ascii_only: bool):
    data = json.dumps({"t": "ping", "more": value}, ensure_ascii=ascii_only).encode()
    codec.check_keys(data)
    twice = data[:-1] + b',"mor\\u0065":0}'
    with pytest.raises(Refused, match="twice"):
        codec.check_keys(twice)
