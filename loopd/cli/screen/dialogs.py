"""What the screen asks or tells in a window of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class Ask(ModalScreen[str | None]):
    """A question with an answer in words: Enter takes it, Escape gives up (None)."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape", "dismiss(None)", "give up")]

    def __init__(self, question: str, *, hint: str = "", needs_words: bool = False) -> None:
        super().__init__()
        self._question = question
        self._hint = hint
        self._needs_words = needs_words

    def compose(self) -> ComposeResult:
        """See Textual."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._question))
            yield Input(placeholder=self._hint)
            yield Static(Text("Enter: do it   Escape: leave it", style="dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer."""
        event.stop()
        if event.value.strip() or not self._needs_words:
            self.dismiss(event.value.strip())


class Confirm(ModalScreen[bool]):
    """Yes or no; anything but `y` is no."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """See Textual."""
        with Vertical(classes="dialog"):
            yield Static(Text(self._question))
            yield Static(Text("y: do it   n: leave it", style="dim"))


class Told(ModalScreen[None]):
    """Something to read."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape,enter,q", "dismiss(None)", "close")]

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """See Textual."""
        with VerticalScroll(classes="dialog"):
            yield Static(self._text)
            yield Static(Text("Escape: close", style="dim"))
