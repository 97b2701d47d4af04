"""The line at the foot of both views: typed commands, and what came of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Input, Static

if TYPE_CHECKING:
    from loopd.cli.screen.app import Top


class Commanded(Screen[None]):
    """A view with a command line. `chosen` is the session that commands are for."""

    BINDINGS: ClassVar[list[Any]] = [
        # Before all others: what is typed or pasted right behind them must find the line.
        Binding("slash", "line('/')", "command", priority=True),
        Binding("m", "line('')", "message", priority=True),
        Binding("s", "reason('suspend')", "suspend"),
        Binding("u", "at_once('unsuspend')", "unsuspend"),
        Binding("i", "reason('interrupt')", "interrupt"),
        Binding("w", "why", "why"),
    ]

    @property
    def top(self) -> Top:
        """The application."""
        return cast("Top", self.app)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the line a slash is a slash."""
        del parameters
        return action != "line" or not isinstance(self.focused, Input)

    @property
    def chosen(self) -> str | None:
        """The session that commands are for."""
        return None

    def note(self, text: Text) -> None:
        """Show what came of something."""
        if self.is_mounted:
            self.query_one("#note", Static).update(text)

    def action_line(self, start: str) -> None:
        """Go to the command line."""
        line = self.query_one("#line", Input)
        line.value = start
        line.cursor_position = len(start)
        self.set_focus(line)  # at once: what is typed next belongs to the line

    def action_reason(self, verb: str) -> None:
        """Ask for a reason, then act on the chosen session."""
        if self.chosen is not None:
            self.top.ask_reason(verb, self.chosen, self.note)

    def action_at_once(self, verb: str) -> None:
        """Act on the chosen session."""
        if self.chosen is not None:
            self.top.carry_out({"t": verb, "sid": self.chosen}, self.note)

    def action_why(self) -> None:
        """Why is the chosen session not running?"""
        self.top.typed("/why", self.chosen, self.note)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Carry out the line and go back to the view."""
        text = event.value
        event.input.value = ""
        self.focus_view()
        if text.strip():
            self.top.typed(text, self.chosen, self.note)

    def focus_view(self) -> None:
        """Give the keys back to the view."""
