"""Where frames end: bytes in pieces of any size, bounded memory, linear work."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd_protocol.framing import Splitter


def fed(splitter: Splitter, pieces: list[bytes]) -> list[bytes]:
    return [frame for piece in pieces for frame in splitter.split(piece)]


def sized(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def test_lines_become_frames_and_the_rest_is_kept():
    splitter = Splitter()
    assert splitter.split(b'{"a":1}\n{"b":2}\n{"c"') == [b'{"a":1}', b'{"b":2}']
    assert splitter.held_bytes == 4
    assert splitter.split(b":3}\n") == [b'{"c":3}']
    assert splitter.held_bytes == 0


def test_empty_lines_are_nothing():
    assert Splitter().split(b"\n \r\n\t\n{}\r\n\n") == [b"{}\r"]


def test_sized_frames_may_hold_any_byte():
    splitter = Splitter(enc="msgpack")
    assert splitter.split(sized(b"\n\n", b"", b"\x00" * 9)) == [b"\n\n", b"", b"\x00" * 9]


@pytest.mark.parametrize("size", [10, 11])
def test_a_line_of_the_limit_passes_and_one_byte_more_fails(size: int):
    splitter = Splitter(limit_bytes=10)
    got = splitter.split(b"x" * size + b"\n{}\n")
    assert got == ([b"x" * 10, b"{}"] if size == 10 else [])
    assert (splitter.failure is None) == (size == 10)


def test_an_endless_line_fails_early_and_holds_nothing():
    splitter = Splitter(limit_bytes=1_000)
    for _ in range(300):
        splitter.split(b"x" * 7)
        assert splitter.held_bytes <= 1_000
    assert splitter.failure is not None
    assert splitter.failure.code == "frame_too_large"
    assert "1000" in splitter.failure.message
    assert splitter.held_bytes == 0


def test_a_length_over_the_limit_fails_before_any_of_it_arrives():
    splitter = Splitter(limit_bytes=1_000, enc="msgpack")
    assert splitter.split(sized(b"ok") + (1_001).to_bytes(4, "big")) == [b"ok"]
    assert splitter.failure is not None


def test_nothing_comes_after_a_failure():
    splitter = Splitter(limit_bytes=3)
    assert splitter.split(b"abcd\nab\n") == []
    assert splitter.split(b"ab\n") == []


def test_the_limit_may_rise_in_the_middle_of_a_piece():
    splitter = Splitter(limit_bytes=10)
    splitter.feed(b"hello\n" + b"x" * 50 + b"\n")
    assert splitter.pull() == b"hello"
    splitter.limit_bytes = 100
    assert splitter.pull() == b"x" * 50


def test_the_encoding_may_change_in_the_middle_of_a_piece():
    splitter = Splitter()
    splitter.feed(b"hello\n" + sized(b"one", b"two"))
    assert splitter.pull() == b"hello"
    splitter.enc = "msgpack"
    assert [splitter.pull(), splitter.pull(), splitter.pull()] == [b"one", b"two", None]


@given(
    st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b and b.strip()), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.integers(5, 50),
)
def test_lines_split_at_any_byte_are_the_same(frames: list[bytes], places: list[int], limit: int):
    data = b"".join(frame + b"\n" for frame in frames)
    whole, parts = Splitter(limit_bytes=limit), Splitter(limit_bytes=limit)
    assert fed(parts, cut(data, places)) == whole.split(data)
    assert (parts.failure is None) == (whole.failure is None) == all(len(f) <= limit for f in frames)


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.integers(5, 50),
)
def test_sized_frames_split_at_any_byte_are_the_same(frames: list[bytes], places: list[int], limit: int):
    data = sized(*frames)
    whole, parts = Splitter(limit_bytes=limit, enc="msgpack"), Splitter(limit_bytes=limit, enc="msgpack")
    assert fed(parts, cut(data, places)) == whole.split(data)
    assert (parts.failure is None) == (whole.failure is None) == all(len(f) <= limit for f in frames)


@pytest.mark.parametrize("enc", ["json", "msgpack"])
def test_feeding_byte_by_byte_costs_time_in_proportion(enc):
    def cost(size: int) -> float:
        body = b"x" * size
        data = sized(body) if enc == "msgpack" else body + b"\n"
        pieces = [data[i : i + 1] for i in range(len(data))]
        best = float("inf")
        for _ in range(3):
            splitter = Splitter(enc=enc)
            begun = time.process_time()
            got = fed(splitter, pieces)
            best = min(best, time.process_time() - begun)
            assert got == [body]
        return best

    # Quadratic work would be 64 times as much; a factor of 8 is linear, the rest is noise.
    assert cost(160_000) < 24 * cost(20_000)
