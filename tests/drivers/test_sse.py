"""Server-sent events, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.drivers.sse import EventParser, EventTooLarge, ServerEvent

field = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=12)
events = st.lists(st.lists(field, min_size=1, max_size=3), max_size=6)


@given(events, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 9), max_size=30), st.booleans())
def test_any_cut_of_the_bytes_gives_the_same_events(
    wanted: list[list[str]], end: str, cuts: list[int], mark: bool
) -> None:
    text = "\ufeff" if mark else ""
    for lines in wanted:
        text += ": a comment" + end + "".join(f"data: {line}{end}" for line in lines) + end
    # A lone CR at the very end may still become CRLF; the next byte settles it.
    data = text.encode() + b": end\n"
    parser, found, at = EventParser(), [], 0
    for size in [*cuts, len(data)]:
        found += parser.feed(data[at : at + size])
        at += size
    assert found == [ServerEvent("", "\n".join(lines)) for lines in wanted]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_line_ends_may_be_cut_in_two(end: bytes, size: int) -> None:
    data = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b": end", b""])
    parser, found = EventParser(), []
    for at in range(0, len(data), size):
        found += parser.feed(data[at : at + size])
    assert found == [ServerEvent("", "a\nb"), ServerEvent("", "c")]


def test_event_names_belong_to_their_event_only() -> None:
    found = EventParser().feed(b"event: error\ndata: a\n\ndata:b\n\ndata\n\nid: 3\n\n")
    assert found == [ServerEvent("error", "a"), ServerEvent("", "b"), ServerEvent("", "")]


def test_an_unfinished_event_is_not_given() -> None:
    assert EventParser().feed(b"data: half\n") == []


@pytest.mark.parametrize("data", [b"data: " + b"x" * 200, b"data: xxxxxxxxxxx\n" * 20])
def test_an_event_that_outgrows_the_bound_is_an_error(data: bytes) -> None:
    def feed(parser: EventParser) -> None:
        for at in range(0, len(data), 7):
            parser.feed(data[at : at + 7])

    with pytest.raises(EventTooLarge, match="more than 100 bytes"):
        feed(EventParser(max_event_bytes=100))
