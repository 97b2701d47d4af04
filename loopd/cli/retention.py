"""Arguments of the verbs about the age and the size of the journal."""

from __future__ import annotations

from loopd.cli import arguments as arg

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl retention run`."""
    parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    parser.add_argument("--wait", action="store_true", help="return when it is done")


def hold_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl retention hold` and `release`."""
    arg.selection(parser, ended=True)
    arg.reason(parser)


def snapshot_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl db snapshot`."""
    file = parser.add_argument("file", metavar="FILE", help="a new file on the daemon's machine")
    arg.complete(file, **arg.FILE_COMPLETION)
    parser.add_argument(
        "--verify",
        action="store_true",
        help="check chains, invariants and projections of the copy, not only its pages and the end of its chain",
    )
