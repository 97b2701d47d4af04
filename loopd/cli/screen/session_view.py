"""One session: how it stands and why, its events as they happen, its live text."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.timer import Timer
from textual.widgets import Footer, Input, RichLog, Static

from loopd.cli.console import safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms
from loopd.cli.screen import paint, rows
from loopd.cli.screen.command_line import Commanded

REFRESH_S = 1.0
SOON_S = 0.15
LIVE_CHARS = 400
PAST_EVENTS = 200


class SessionView(Commanded):
    """One session.

    Args:
        sid: its id or name.
    """

    BINDINGS: ClassVar[list[Any]] = [
        Binding("escape", "back", "back"),
        Binding("q", "back", "back", show=False),
    ]

    def __init__(self, sid: str) -> None:
        super().__init__()
        self._ref = sid
        self._sid: str | None = None
        self._live = ""
        self._last_seq = 0
        self._soon: Timer | None = None
        self._asking = False
        self._session: dict[str, Any] = {}
        self._why: dict[str, Any] = {}

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="head")
        yield Static(id="facts")
        yield RichLog(id="events", max_lines=5_000, wrap=True, markup=False)
        yield Static(id="live")
        yield Static(id="note")
        yield Input(
            id="line", select_on_focus=False, placeholder="/command, or a message to this session; /help"
        )
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Fill the view and keep it fresh."""
        self.focus_view()
        self.run_worker(self._begin(), exclusive=False)
        self.set_interval(REFRESH_S, self._refresh)

    def on_unmount(self) -> None:
        """Nobody watches its text any more."""
        self.top.feed.watched = None

    @property
    def chosen(self) -> str | None:
        """This session."""
        return self._sid

    def focus_view(self) -> None:
        """Give the keys to the events, which scroll."""
        self.set_focus(self.query_one("#events", RichLog))

    def action_back(self) -> None:
        """From the line to the events, from there to the fleet."""
        line = self.query_one("#line", Input)
        if line.has_focus:
            line.value = ""
            self.focus_view()
        else:
            self.app.pop_screen()

    # -- hear and ask -------------------------------------------------------------------------

    def heard(self, frame: dict[str, Any]) -> None:
        """A frame of the log; those of other sessions say nothing here."""
        kind = frame.get("t")
        if kind == "link" and not frame["up"]:
            self.note(Text(safe(f"not connected, trying again: {frame['why']}"), style="red"))
        elif kind == "link":
            self.note(Text(""))
            self._refresh_soon()
        elif self._sid is None or frame.get("sid") != self._sid:
            return
        elif kind == "ev":
            self._tell(frame)
            if str(frame.get("k")) in {"turn.step", "turn.completed", "turn.interrupted"}:
                self._hear_text("", fresh=True)
            self._refresh_soon()
        elif kind == "delta":
            self._hear_text(str(frame.get("text") or ""))

    def _tell(self, event: dict[str, Any]) -> None:
        if event["seq"] > self._last_seq:  # the past and the stream may overlap
            self._last_seq = event["seq"]
            self.query_one("#events", RichLog).write(paint.event_line(event, None))

    def _hear_text(self, text: str, *, fresh: bool = False) -> None:
        self._live = "" if fresh else (self._live + text)[-LIVE_CHARS:]
        shown = Text(f"… {safe(self._live)}" if self._live else "", style="dim")
        self.query_one("#live", Static).update(shown)

    def _refresh_soon(self) -> None:
        if self._soon is None:
            self._soon = self.set_timer(SOON_S, self._refresh)

    def _refresh(self) -> None:
        self._soon = None
        if not self._asking and self._sid is not None:
            self._asking = True
            self.run_worker(self._ask(), exclusive=False)

    async def _begin(self) -> None:
        try:
            session = await self.top.ask({"t": "session.get", "sid": self._ref})
        except Failure as failure:
            self.note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
            return
        self._sid = str(session["sid"])
        self.top.feed.watched = self._sid
        self.top.names[self._sid] = str(session.get("name") or self._sid)
        await self._ask()
        try:
            page = await self.top.ask({"t": "history.page", "sid": self._sid, "limit": PAST_EVENTS})
        except Failure as failure:
            self.note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
            return
        log = self.query_one("#events", RichLog)
        heard, self._last_seq = self._last_seq, 0
        if heard:
            log.clear()  # events came before their past did; the page has them too
        for event in page["events"]:
            self._tell(event)

    async def _ask(self) -> None:
        try:
            self._session = await self.top.ask({"t": "session.get", "sid": self._sid})
            self._why = await self.top.ask({"t": "why", "sid": self._sid})
        except Failure as failure:
            self.note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
            return
        finally:
            self._asking = False
        self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        session = self._session
        sign = rows.mark(session)
        head = Text.assemble(
            (f"{sign.text} ", sign.style),
            (safe(str(session.get("name"))), "bold"),
            (f"  {session['sid']}  {safe(str((session.get('driver') or {}).get('kind', '')))}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
        self.query_one("#head", Static).update(head)
        self.query_one("#facts", Static).update(paint.pairs(rows.facts(session, self._why, now_ms())))
