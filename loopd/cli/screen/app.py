"""The application: it owns the feed, carries out what is typed, and shows the fleet first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.message import Message

from loopd.cli.console import safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms
from loopd.cli.screen import paint, rows, slash
from loopd.cli.screen.dialogs import Ask, Confirm, Told
from loopd.cli.screen.feed import Feed
from loopd.cli.screen.fleet_view import FleetView
from loopd.cli.screen.session_view import SessionView
from loopd.cli.standing import holds_table


class Heard(Message):
    """A frame came from the daemon."""

    def __init__(self, frame: dict[str, Any]) -> None:
        super().__init__()
        self.frame = frame


class Top(App[int]):
    """`loopctl top`.

    Args:
        feed: the talk with the daemon.
        session: a session to begin with, or None for the fleet.
    """

    CSS = """
    #head, #note, #facts, #live { height: auto; }
    #facts { max-height: 14; }
    #live { max-height: 4; color: $text-muted; }
    #feed { height: 5; }
    #table, #events { height: 1fr; }
    #line { height: 1; border: none; padding: 0; background: $surface; }
    .dialog { width: 90%; max-width: 96; height: auto; max-height: 90%; padding: 1 2; background: $panel; }
    Ask, Confirm, Told { align: center middle; }
    RichLog, DataTable { background: $background; scrollbar-size-vertical: 1; }
    """
    TITLE = "loopctl top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("question_mark", "help", "help"),
    ]

    def __init__(self, feed: Feed, session: str | None = None) -> None:
        super().__init__()
        self.feed = feed
        self.names: dict[str, str] = {}
        self._first = session

    def on_mount(self) -> None:
        """Show the fleet, listen."""
        self.push_screen(FleetView())
        if self._first is not None:
            self.open_session(self._first)
        self.feed.follow(lambda frame: self.post_message(Heard(frame)))

    def on_heard(self, message: Heard) -> None:
        """Pass a frame to whoever shows something."""
        frame = message.frame
        if frame.get("k") == "session.created":
            self.names[str(frame.get("sid"))] = str((frame.get("b") or {}).get("name") or frame.get("sid"))
        for screen in self.screen_stack:
            if isinstance(screen, FleetView | SessionView):
                screen.heard(frame)

    # -- what views ask for -----------------------------------------------------------------

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """The daemon's answer. Raises `Failure`."""
        return await asyncio.to_thread(self.feed.ask, command)

    async def sessions(self, *, ended: bool) -> list[dict[str, Any]]:
        """All sessions; their names are remembered. Raises `Failure`."""
        found = await asyncio.to_thread(lambda: self.feed.sessions(ended=ended))
        self.names.update({one["sid"]: str(one.get("name") or one["sid"]) for one in found})
        return found

    def open_session(self, sid: str) -> None:
        """Show one session."""
        self.push_screen(SessionView(sid))

    def typed(self, text: str, sid: str | None, note: Callable[[Text], object]) -> None:
        """Carry out a typed line; `note` shows what came of it."""
        try:
            line = slash.parse(text, sid, now_ms())
        except ValueError as error:
            note(Text(safe(str(error)), style="red"))
            return
        if line.local:
            self._local(line, sid, note)
        elif line.grave and line.command is not None:
            command = line.command
            who = "" if "sid" not in command else f" {self.names.get(command['sid'], command['sid'])}"
            question = f"{command['t']}{who}? {safe(str(command.get('reason') or ''))}".rstrip()

            def answered(yes: bool | None) -> None:  # noqa: FBT001  (Textual calls it)
                if yes:
                    self.carry_out(command, note)

            self.push_screen(Confirm(question), answered)
        elif line.command is not None:
            self.carry_out(line.command, note)

    def ask_reason(self, verb: str, sid: str, note: Callable[[Text], object]) -> None:
        """Ask for a reason, then suspend or the like."""
        name = self.names.get(sid, sid)
        hint = "why, for whoever reads it tomorrow"

        def answered(reason: str | None) -> None:
            if reason is not None:
                self.carry_out({"t": verb, "sid": sid, "reason": reason}, note)

        self.push_screen(Ask(f"{verb} {safe(name)}?", hint=hint), answered)

    def carry_out(self, command: dict[str, Any], note: Callable[[Text], object]) -> None:
        """Send a command and note its answer."""

        async def work() -> None:
            try:
                answer = await self.ask(command)
            except Failure as failure:
                note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
                return
            note(Text(safe(slash.told(command, answer)), style="green"))

        self.run_worker(work(), exclusive=False)

    def _local(self, line: slash.Line, sid: str | None, note: Callable[[Text], object]) -> None:
        fleet = next((one for one in self.screen_stack if isinstance(one, FleetView)), None)
        match line.local:
            case "quit":
                self.exit(0)
            case "back":
                if isinstance(self.screen, SessionView):
                    self.pop_screen()
            case "help":
                self.action_help()
            case "why":
                self._why(sid, note)
            case "filter" if fleet is not None:
                fleet.wanted = line.word
                fleet.refresh_soon()
            case "sort" if fleet is not None:
                if line.word not in rows.SORTS:
                    note(Text(f"/sort takes one of {', '.join(rows.SORTS)}", style="red"))
                else:
                    fleet.sort = line.word
                    fleet.refresh_soon()

    def _why(self, sid: str | None, note: Callable[[Text], object]) -> None:
        if sid is None:
            note(Text("no session is chosen", style="red"))
            return

        async def work() -> None:
            try:
                session = await self.ask({"t": "session.get", "sid": sid})
                answer = await self.ask({"t": "why", "sid": sid})
            except Failure as failure:
                note(Text(safe(f"{failure.code}: {failure.message}"), style="red"))
                return
            now = now_ms()
            text = paint.pairs(rows.facts(session, answer, now))
            for held in answer.get("held_back") or ():
                text.append(f"\nheld back  {held['source']} {held['id']} for {', '.join(held['by'])}")
            if not holds_table(answer["holds"], now) and not answer.get("house"):
                text.append("\nnothing holds it back")
            self.push_screen(Told(text))

        self.run_worker(work(), exclusive=False)

    def action_help(self) -> None:
        """Show all commands and keys."""
        width = max(map(len, slash.HELP))
        lines = [f"{name:{width}}  {what}".rstrip() for name, what in slash.HELP.items()]
        lines += ["", "keys: Enter open, / command, m message, s suspend, u unsuspend, i interrupt,"]
        lines += ["w why, o order, e ended too, Escape back, q quit"]
        self.push_screen(Told(Text("\n".join(lines))))
