"""What a verb of `loopctl` is made of."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Configure = Callable[[argparse.ArgumentParser], None]


class Verb:
    """One verb.

    Attributes:
        summary: one line for lists and help.
        examples: command lines with comments, shown below the options.
        configure: adds the arguments to a parser.
        runs: `module:function` under `loopd.cli`, imported when the verb is carried out.
    """

    __slots__ = ("configure", "examples", "runs", "summary")

    def __init__(self, summary: str, runs: str, configure: Configure, *examples: str) -> None:
        self.summary = summary
        self.runs = runs
        self.configure = configure
        self.examples = examples
