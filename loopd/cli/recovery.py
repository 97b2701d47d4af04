"""Arguments of the verbs about recovery."""

from __future__ import annotations

from loopd.cli import arguments as arg

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def recover_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl recover`."""
    arg.limit(parser, 1, "how many starts")


def list_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl effect list`."""
    arg.sid(parser, "?", "only effects of this session")
    parser.add_argument(
        "--state",
        choices=("uncertain", "open", "any"),
        default="uncertain",
        help="uncertain: nobody knows (default); open: begun and running; any: all",
    )
    arg.limit(parser, 100, "how many effects")


def resolve_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl effect resolve`."""
    arg.sid(parser)
    parser.add_argument("id", metavar="ID", help="id of the effect, as `effect list` shows it")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--happened", dest="outcome", action="store_const", const="happened", help="it was done"
    )
    which.add_argument(
        "--not-happened", dest="outcome", action="store_const", const="not_happened", help="it was not done"
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="what the agent should know about it")
