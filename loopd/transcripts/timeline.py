"""A session's history as one page for a browser: turns, holds, rungs and findings on a line, and every turn to open.

No script, nothing that is loaded, and whatever agents wrote is text: escaped, with the characters that turn text
around or hide it shown as what they are.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from html import escape
from typing import Any

from loopd.transcripts.style import HEAD
from loopd.transcripts.timeline_story import RUNGS, Moment, Story, Turn, clock
from loopd.transcripts.timeline_style import LEGEND, STYLE

TURNS_MAX = 5_000
"""Turns that are drawn; a browser gets slow beyond."""

OPENED_MAX = 1_000
"""Turns whose steps can be opened."""

TEXT_CHARS = 20_000
WIDTH, LEFT, CELL = 1_100, 108, 18.0
LANE, TOP, BAR = 20, 26, 14
_HIDDEN = {
    code: f"\\u{code:04x}"
    for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200B, 0x200E, 0x200F, 0xFEFF, 0x061C)
}
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in {9, 10, 13}}
_SHOWN = str.maketrans({**_HIDDEN, **_CONTROL})


def page(moments: Iterable[Moment], manifest: Mapping[str, Any] | None = None) -> str:
    """The whole page, of one session or of several."""
    sessions: dict[int | str, Story] = {}
    for moment in moments:
        if moment.session is not None:
            sessions.setdefault(moment.session, Story()).see(moment)
    for session in sessions.values():
        session.finish()
    return "".join(_whole(list(sessions.values()), manifest or {}))


def _whole(sessions: list[Story], manifest: Mapping[str, Any]) -> Iterator[str]:
    title = sessions[0].name if len(sessions) == 1 else f"{len(sessions)} sessions"
    yield HEAD.replace("<title>loopd inspect</title>", f"<title>{_text(title)} — loopd</title>").replace(
        "</style>", f"{STYLE}</style>"
    )
    yield f"<header><h1>{_text(title)}</h1>{_origin(manifest)}</header>\n<main>\n"
    yield LEGEND
    opened = 0
    for number, session in enumerate(sessions, 1):
        opened = yield from _section(session, number, opened)
    yield "</main></body></html>\n"


def _origin(manifest: Mapping[str, Any]) -> str:
    if not manifest:
        return ""
    span, head = manifest.get("range") or {}, manifest.get("head") or {}
    profile = (manifest.get("redaction") or {}).get("profile")
    parts = [
        f"log {manifest.get('log')}",
        f"seq {span.get('first')} to {span.get('last')}",
        f"head {str(head.get('hash'))[:16]}…",
        "" if profile in {None, "none"} else f"redaction: {profile}",
        f"loopd {manifest.get('loopd')}",
    ]
    return f"<p>{_text(' · '.join(part for part in parts if part))}</p>"


def _section(session: Story, number: int, opened: int) -> Generator[str, None, int]:
    turns = session.turns
    yield f'<section id="s{number}"><h2>{_text(session.name or session.sid)} <span class="pill {_word(session.status)}">{_text(session.status)}</span></h2>\n'
    tokens = sum(turn.input + turn.output for turn in turns)
    steps = sum(len(turn.steps) for turn in turns)
    facts = (
        session.sid, session.driver, f"{len(turns):,} turns", f"{steps:,} steps",
        f"{tokens:,} tokens" if tokens else "", f"{len(session.findings):,} findings", f"{len(session.holds):,} holds",
        f"{clock(session.first_ms)} to {clock(session.last_ms)} UTC",
    )  # fmt: skip
    yield f'<p class="facts">{_text(" · ".join(fact for fact in facts if fact))}</p>\n'
    if turns:
        yield '<div class="scroll">'
        yield from _picture(session, number)
        yield "</div>\n"
        if len(turns) > TURNS_MAX:
            yield f'<p class="note">Drawn up to turn {turns[TURNS_MAX - 1].n:,}.</p>\n'
    yield from _findings(session)
    for turn in turns:
        if opened >= OPENED_MAX:
            yield f'<p class="note">{len(turns) - turns.index(turn):,} more turns are not listed; `loopctl show` has them.</p>\n'
            break
        opened += 1
        yield from _turn(turn, number)
    yield "</section>\n"
    return opened


def _picture(session: Story, number: int) -> Iterator[str]:
    turns = session.turns[:TURNS_MAX]
    wide = max(2.0, min(CELL, WIDTH / (len(turns) + 1)))
    kinds = list(dict.fromkeys(hold.kind for hold in session.holds))
    rung_y = TOP + LANE * 2 + 8
    holds_y = rung_y + LANE * 2
    height = holds_y + LANE * len(kinds) + 26
    right = LEFT + wide * (len(turns) + 1)

    def x(place: float) -> float:
        return LEFT + wide * min(place, len(turns) + 0.5)

    label = f"{len(turns)} turns, {len(session.findings)} findings, {len(session.holds)} holds"
    yield f'<svg role="img" aria-label="{label}" width="{right + 12:.0f}" height="{height}">\n'
    names = [("turns", TOP + 13), ("findings", TOP + LANE + 14), ("rung", rung_y + 20)]
    names += [(kind, holds_y + LANE * row + 13) for row, kind in enumerate(kinds)]
    yield "".join(f'<text class="label" x="0" y="{y}">{_text(name)}</text>' for name, y in names)
    for place, turn in enumerate(turns):
        said = f"turn {turn.n}, begun by {turn.trigger}: {turn.outcome}\n{len(turn.steps)} steps, {turn.input + turn.output:,} tokens\n{clock(turn.at_ms)}"
        title = f"<title>{_text(said)}</title>"
        inner = wide * 0.86
        link = f'<a href="#s{number}t{turn.n}">'
        yield (
            f'{link}<rect class="o-{_word(turn.outcome)}" x="{x(place):.1f}" y="{TOP}" width="{inner:.1f}" height="{BAR}" rx="1.5">{title}</rect>'
            f'<rect class="t-{_word(turn.trigger)}" x="{x(place):.1f}" y="{TOP + BAR + 1}" width="{inner:.1f}" height="3">{title}</rect></a>'
        )
    yield "\n"
    for at, mark, words in session.marks:
        yield f'<path class="mark" d="M{x(at):.1f} {TOP - 6}v{height - 30}"><title>{_text(f"{mark}: {words}")}</title></path>'
    for at, value, seq, at_ms in session.findings:
        yield _finding_mark(x(at), TOP + LANE + 10, value, seq, at_ms)
    if session.rungs:
        points = [f"M{LEFT} {_rung(rung_y, 0)}"]
        for at, rung in session.rungs:
            points.append(f"H{x(at):.1f}V{_rung(rung_y, rung)}")
        points.append(f"H{right:.1f}")
        yield f'<path class="grid" d="M{LEFT} {_rung(rung_y, 0)}H{right:.1f}"/>'
        yield f'<path class="rung" d="{"".join(points)}"><title>how far the ladder was climbed: {", ".join(RUNGS)}</title></path>\n'
    for hold in session.holds:
        y = holds_y + LANE * kinds.index(hold.kind)
        yield (
            f'<rect class="hold h-{_word(hold.kind)}" x="{x(hold.begin):.1f}" y="{y + 3}" '
            f'width="{max(3.0, x(hold.end) - x(hold.begin)):.1f}" height="{BAR - 2}" rx="3"><title>{_text(hold.title)}</title></rect>'
        )
    every = next((n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000) if n * wide >= 90), 5_000)
    for place in range(0, len(turns), every):
        yield f'<text class="axis start" x="{x(place):.1f}" y="{height - 6}">{turns[place].n} · {clock(turns[place].at_ms)[11:19]}</text>'
    yield "</svg>"


def _rung(top: int, rung: int) -> int:
    return top + 26 - 5 * rung


def _finding_mark(x: float, y: int, value: dict[str, Any], seq: int, at_ms: int) -> str:
    lines = [
        f"seq {seq}, {clock(at_ms)}: {value.get('rule')} → {value.get('verdict')}",
        *map(str, value.get("evidence") or ()),
    ]
    title = f"<title>{_text(chr(10).join(lines))}</title>"
    if value.get("level") == "hard" or value.get("verdict") in {"close", "terminate"}:
        return f'<path class="hard" d="M{x:.1f} {y - 6}l6 6-6 6-6-6z">{title}</path>'
    return f'<circle class="soft" cx="{x:.1f}" cy="{y}" r="4.5">{title}</circle>'


def _findings(session: Story) -> Iterator[str]:
    if not session.findings:
        return
    yield '<div class="scroll"><table class="findings"><thead><tr>'
    names = ("seq", "when", "rule", "level", "verdict", "score", "evidence")
    yield "".join(f"<th>{name}</th>" for name in names) + "</tr></thead><tbody>\n"
    for _, value, seq, at_ms in session.findings[:200]:
        level = _word(str(value.get("level")))
        evidence = "".join(f"<li>{_text(str(each))}</li>" for each in value.get("evidence") or ())
        shadow = " (shadow)" if value.get("shadow") else ""
        yield (
            f'<tr><td class="n">{seq:,}</td><td class="n">{clock(at_ms)[11:]}</td><td>{_text(str(value.get("rule")))}</td>'
            f'<td><span class="dot {level}"></span>{level}</td><td>{_text(str(value.get("verdict")))}{shadow}</td>'
            f'<td class="n">{value.get("score")} of {value.get("threshold")} {_text(str(value.get("unit") or "turns"))}</td>'
            f"<td><ul>{evidence}</ul></td></tr>\n"
        )
    yield "</tbody></table></div>\n"
    if len(session.findings) > 200:
        yield f'<p class="note">{len(session.findings) - 200:,} more findings.</p>\n'


def _turn(turn: Turn, number: int) -> Iterator[str]:
    tokens = turn.input + turn.output
    facts = [
        f"{len(turn.steps)} step{'' if len(turn.steps) == 1 else 's'}",
        f"{tokens:,} tokens" if tokens else "",
        f"{(turn.end_ms - turn.at_ms) / 1_000:.1f} s",
    ]
    yield (
        f'<details class="turn" id="s{number}t{turn.n}"><summary><span class="chip t-{_word(turn.trigger)}"></span>turn {turn.n} '
        f'<b>{_text(turn.trigger)}</b> <span class="chip o-{_word(turn.outcome)}"></span>{_text(turn.outcome)} '
        f'<span class="dim">{_text(" · ".join(fact for fact in facts if fact))} · {clock(turn.at_ms)} · seq {turn.seq:,}</span></summary>\n'
    )
    for said in turn.said:
        yield f'<div class="said"><b>{_text(str(said.get("source")))}</b>{_block(str(said.get("text") or ""))}</div>\n'
    for step in turn.steps:
        yield f'<div class="step"><b>step {_text(str(step.get("step")))}</b>{_block(str(step.get("text") or ""))}'
        if step.get("text_blob"):
            yield '<p class="note">The whole text is in the archive.</p>'
        for call in step.get("calls") or ():
            ok = {True: "ok", False: "failed"}.get(call.get("ok"), "unknown")
            yield (
                f'<div class="call"><span class="pill {ok}">{ok}</span> <code>{_text(str(call.get("name")))}({_text(_compact(call.get("args")))})</code>'
                f"{_block(str(call.get('result') or ''))}</div>"
            )
        yield "</div>\n"
    if turn.partial:
        yield f'<div class="step"><b>cut off</b>{_block(turn.partial)}</div>\n'
    if turn.error:
        yield f'<p class="error">{_text(turn.error)}</p>\n'
    for value in turn.findings:
        yield f'<p class="found"><span class="dot {_word(str(value.get("level")))}"></span>{_text(str(value.get("rule")))} → {_text(str(value.get("verdict")))}: {_text("; ".join(map(str, value.get("evidence") or ())))}</p>\n'
    yield "</details>\n"


def _block(text: str) -> str:
    if not text:
        return ""
    cut = f"\n… {len(text) - TEXT_CHARS:,} more characters" if len(text) > TEXT_CHARS else ""
    return f'<pre dir="auto">{_text(text[:TEXT_CHARS])}{cut}</pre>'


def _text(text: str) -> str:
    """Foreign text as text: no markup, nothing hidden, nothing that turns the line around."""
    return escape(text.translate(_SHOWN))


def _word(text: str) -> str:
    """A class name made of a word of the journal, which a foreign archive may have written."""
    return (
        "".join(char for char in text if char.isascii() and (char.isalnum() or char in "_-"))[:40] or "none"
    )


def _compact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 2_000 else text[:2_000] + "…"
