"""The timeline of a session: whatever agents wrote is text, nothing is loaded, nothing runs."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loopd.transcripts.timeline import page
from loopd.transcripts.timeline_story import Moment
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall
from loopd_protocol.holds import Degeneration, UserSuspend
from loopd_protocol.sources import Source, Trigger

NASTY = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</pre></details><svg onload=alert(1)>",
            "&lt;b&gt;", "javascript:alert(1)", "\u202etxt.exe", "\x1b[31mred", "']];//", "<!--", "]]>",
        ]
    ),
)  # fmt: skip


def story(text: str, name: str = "mapper") -> list[Moment]:
    hold = Degeneration(
        by=f"rule:{text[:20]}", rule="repeated_text", until_ms=90_000, since_ms=4_000, reason=text[:100]
    )
    suspend = UserSuspend(by="uid:1", reason=text[:100], since_ms=6_000)
    events: tuple[ev.Event, ...] = (
        ev.SessionCreated(sid="ses_1", num=1, name=name, driver={"kind": "chat", "model": text[:20]}, preset="published"),
        ev.EnvelopeAccepted(id="e1", source=Source.HUMAN, text=text, ephemeral_in_history=False),
        ev.TurnStarted(n=1, trigger=Trigger.HUMAN, envelopes=("e1",)),
        ev.TurnStep(
            n=1, step=1, total=1, text=text,
            calls=(ToolCall(id="c", name=text[:30] or "t", args={text[:10]: text}, ok=False, result=text),),
        ),
        ev.DegenerationDetected(
            rule=text[:30], verdict="close", level="hard", score=3, threshold=3, evidence=(text, "more"),
        ),
        ev.GateChanged(gate="closed", cause="detection", by="rule:x", gen=1, holds=(hold,), added=hold),
        ev.TurnCompleted(n=1, outcome="completed", error=text),
        ev.GateChanged(gate="open", cause=text[:20], by="uid:1", gen=2, removed=("Degeneration",)),
        ev.TurnStarted(n=2, trigger=Trigger.CONTINUATION, prompt=text),
        ev.TurnInterrupted(n=2, cause="interrupt", partial=text),
        ev.GateChanged(gate="closed", cause="suspend", by="uid:1", gen=3, holds=(suspend,), added=suspend),
        ev.SessionEnded(status="aborted_stuck", stop_reason=text[:30], explanation=text),
    )  # fmt: skip
    return [Moment(n, 1, n, 1_000 * n, e.kind, msgspec.json.encode(e)) for n, e in enumerate(events, 1)]


class Reader(HTMLParser):
    """Collects elements and attributes, and what would load or run."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in {"src", "href", "xlink:href", "action", "srcset"}:
                self.links.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "p", "main", "ul", "li", "span", "section", "div",
    "svg", "text", "rect", "path", "circle", "a", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "b", "pre",
    "code",
}  # fmt: skip


@given(text=NASTY)
def test_whatever_is_in_a_journal_is_text_on_the_page(text: str) -> None:
    made = page(
        story(text.encode("utf-8", "replace").decode()),
        {"log": text, "range": {"first": 1, "last": 9}, "head": {"hash": text}},
    )
    reader = Reader()
    reader.feed(made)
    reader.close()
    assert reader.tags <= ALLOWED
    assert reader.handlers == []
    assert all(link.startswith("#") for link in reader.links)
    assert reader.open == [], "what is opened is closed"
    for char in ("\u202e", "\x1b", "\u2066"):
        assert char not in made


def test_the_page_forbids_itself_to_load_anything() -> None:
    made = page(story("x"))
    assert "default-src 'none'" in made
    assert "http" not in made.split("<style>")[0].replace("http-equiv", "")


def test_turns_holds_findings_and_rungs_are_drawn() -> None:
    made = page(
        story("hello there"),
        {
            "log": "lg_1",
            "range": {"first": 1, "last": 12},
            "head": {"hash": "ab" * 32},
            "redaction": {"profile": "secrets"},
        },
    )
    for part in (
        'class="t-human"', 'class="t-continuation"', 'class="o-completed"', 'class="o-interrupted"', 'class="hold h-Degeneration"',
        'class="hold h-UserSuspend"', 'class="rung"', 'class="hard"', "redaction: secrets", "aborted_stuck", "prefers-color-scheme: dark",
        "removed by hello there", "stands until lifted",
    ):  # fmt: skip
        assert part in made, part
    assert made.count('<details class="turn"') == 2


def test_several_sessions_share_a_page_and_a_journal_that_lacks_its_beginning_is_drawn() -> None:
    both: list[Any] = [*story("one"), *(moment._replace(session=2) for moment in story("two", "second"))]
    made = page(both)
    assert made.count("<section") == 2
    assert "2 sessions" in made
    assert "<section" in page(story("x")[3:])
