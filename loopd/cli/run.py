"""What a verb is handed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from loopd.cli.console import Console
    from loopd.cli.link import Link


class Run:
    """One command: the verb's name and arguments, the console and the link to the daemon."""

    __slots__ = ("args", "console", "link", "verb")

    def __init__(self, verb: str, args: argparse.Namespace, console: Console, link: Link) -> None:
        self.verb = verb
        self.args = args
        self.console = console
        self.link = link
