"""The fleet: a row for each session, the sick ones first, and the last events below."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.timer import Timer
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from loopd.cli.console import safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms
from loopd.cli.screen import paint, rows
from loopd.cli.screen.command_line import Commanded

REFRESH_S = 1.0
SOON_S = 0.15
"""What happened shows after this time at the latest; many events at once cost one question."""


class FleetView(Commanded):
    """All sessions.

    Attributes:
        sort: one of `rows.SORTS`.
        wanted: only sessions with this word in them.
    """

    BINDINGS: ClassVar[list[Any]] = [
        Binding("enter", "open", "open"),
        Binding("o", "order", "order"),
        Binding("e", "ended", "ended too", show=False),
        Binding("escape", "leave_line", show=False),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.sort = rows.SORTS[0]
        self.wanted = ""
        self._ended = False
        self._sids: list[str] = []
        self._sessions: list[dict[str, Any]] = []
        self._status: dict[str, Any] = {}
        self._columns: list[tuple[int, int]] = []
        self._shown: list[list[tuple[str, str]]] = []
        self._soon: Timer | None = None
        self._asking = False

    def compose(self) -> ComposeResult:
        """See Textual."""
        yield Static(id="head")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=False)
        yield RichLog(id="feed", max_lines=500, wrap=False, markup=False)
        yield Static(id="note")
        yield Input(
            id="line",
            select_on_focus=False,
            placeholder="/command, or a message to the chosen session; /help",
        )
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Fill the view and keep it fresh."""
        self.focus_view()
        self.set_interval(REFRESH_S, self._refresh)
        self._refresh()
        self.run_worker(self._past(), exclusive=False)

    def on_resize(self) -> None:
        """Other columns may fit."""
        self._show()

    @property
    def chosen(self) -> str | None:
        """The session under the cursor."""
        place = self.query_one("#table", DataTable).cursor_row
        return self._sids[place] if 0 <= place < len(self._sids) else None

    def focus_view(self) -> None:
        """Give the keys to the table."""
        self.set_focus(self.query_one("#table", DataTable))

    # -- hear and ask -------------------------------------------------------------------------

    def heard(self, frame: dict[str, Any]) -> None:
        """A frame of the log."""
        kind = frame.get("t")
        log = self.query_one("#feed", RichLog)
        if kind == "ev":
            log.write(paint.event_line(frame, self.top.names))
            self.refresh_soon()
        elif kind == "gap":
            words = f"gap: events {frame.get('from')} to {frame.get('to')} are not here: {frame.get('why')}"
            log.write(Text(safe(words), style="red"))
        elif kind == "link":
            if frame["up"]:
                self.note(Text(""))
                self.refresh_soon()
            else:
                self.note(Text(safe(f"not connected, trying again: {frame['why']}"), style="red"))

    def refresh_soon(self) -> None:
        """Ask again in a moment, once for all that happens until then."""
        if self._soon is None:
            self._soon = self.set_timer(SOON_S, self._refresh)

    def _refresh(self) -> None:
        self._soon = None
        if self._asking:
            return
        self._asking = True
        self.run_worker(self._ask(), exclusive=False)

    async def _ask(self) -> None:
        try:
            self._status = await self.top.ask({"t": "daemon.status"})
            self._sessions = await self.top.sessions(ended=self._ended)
        except Failure as failure:
            self.note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
            return
        finally:
            self._asking = False
        self._show()

    async def _past(self) -> None:
        try:
            answer = await self.top.ask({"t": "history.page", "limit": 50})
        except Failure:
            return  # without the scope for content there is no past; what comes is told all the same
        log = self.query_one("#feed", RichLog)
        for event in answer["events"]:
            log.write(paint.event_line(event, self.top.names))

    # -- show -----------------------------------------------------------------------------------

    def _matching(self) -> list[dict[str, Any]]:
        word = self.wanted.casefold()
        if not word:
            return self._sessions
        return [one for one in self._sessions if word in _words(one).casefold()]

    def _show(self) -> None:
        if not self.is_mounted or not self.is_attached:
            return
        now = now_ms()
        sessions = rows.order(self._matching(), self.sort)
        head = rows.headline(self._status, len(sessions), sort=self.sort, wanted=self.wanted)
        self.query_one("#head", Static).update(paint.joined(head))
        lines = [rows.row(one, now) for one in sessions]
        kept, widths = rows.layout(lines, max(20, self.size.width - 2 * 1 - 1))
        shown = [rows.fitted(line, kept, widths) for line in lines]
        self._fill([one["sid"] for one in sessions], list(zip(kept, widths, strict=True)), shown)

    def _fill(self, sids: list[str], columns: list[tuple[int, int]], shown: list[list[Any]]) -> None:
        table = self.query_one("#table", DataTable)
        texts = [[(cell.text, cell.style) for cell in line] for line in shown]
        if columns == self._columns and sids == self._sids:
            for place, (line, old) in enumerate(zip(shown, self._shown, strict=True)):
                for column, cell in enumerate(line):
                    if old[column] != (cell.text, cell.style):
                        table.update_cell_at((place, column), paint.painted(cell))  # type: ignore[arg-type]
        else:
            chosen = self.chosen
            table.clear(columns=True)
            for place, width in columns:
                table.add_column(Text(rows.HEADER[place]), width=width)
            for line in shown:
                table.add_row(*(paint.painted(cell) for cell in line))
            if chosen in sids:
                table.move_cursor(row=sids.index(chosen), animate=False)
        self._sids, self._columns, self._shown = sids, columns, texts

    # -- keys -------------------------------------------------------------------------------------

    def on_data_table_row_selected(self) -> None:
        """Enter on a row."""
        self.action_open()

    def action_open(self) -> None:
        """Show the chosen session."""
        if self.chosen is not None:
            self.top.open_session(self.chosen)

    def action_order(self) -> None:
        """The next order."""
        self.sort = rows.SORTS[(rows.SORTS.index(self.sort) + 1) % len(rows.SORTS)]
        self._show()

    def action_ended(self) -> None:
        """Show ended sessions too, or no more."""
        self._ended = not self._ended
        self.refresh_soon()

    def action_leave_line(self) -> None:
        """Give up what was typed."""
        self.query_one("#line", Input).value = ""
        self.focus_view()


def _words(session: dict[str, Any]) -> str:
    goal = session.get("goal") or {}
    parts = [session.get("name"), session["sid"], session.get("status"), goal.get("text"), goal.get("status")]
    parts += [f"{key}={value}" for key, value in (session.get("labels") or {}).items()]
    parts += [hold["kind"] for hold in session.get("holds") or ()]
    return " ".join(str(part) for part in parts if part)
