"""Which arguments the verbs take that judge logs."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg

PRESETS = ("published", "hardened")


def inspect(parser: argparse.ArgumentParser) -> None:
    """`loopctl inspect`."""
    _logs(parser, "+", "a log, plain or gzip; `-` reads standard input")
    _rules(parser)
    parser.add_argument(
        "--fail-on",
        choices=("soft", "hard"),
        help="exit code 3 when a log has such a finding or a stronger one",
    )
    html = parser.add_argument(
        "--html", metavar="OUT.html", help="also write one page with a picture of each log"
    )
    arg.complete(html, **arg.FILE_COMPLETION)
    parser.add_argument("-a", "--all", action="store_true", help="list logs without findings too")


def backtest(parser: argparse.ArgumentParser) -> None:
    """`loopctl backtest`."""
    _logs(parser, "*", "a log, plain or gzip; `-` reads standard input")
    action = parser.add_argument(
        "--session",
        action="append",
        default=[],
        metavar="SID",
        help="a session that the daemon recorded, instead of files; repeatable",
    )
    arg.complete(action, **arg.SESSION_COMPLETION)
    _rules(parser)
    base = parser.add_argument_group("what it is compared with")
    base.add_argument(
        "--base-preset",
        choices=PRESETS,
        help="default: the session's own preset; of files, the daemon's default",
    )
    base.add_argument(
        "--base-set",
        type=arg.setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of both",
    )
    parser.add_argument("-a", "--all", action="store_true", help="list logs without findings too")


def _logs(parser: argparse.ArgumentParser, nargs: str, meaning: str) -> None:
    files = parser.add_argument("files", metavar="FILE", nargs=nargs, help=meaning)
    arg.complete(files, **arg.FILE_COMPLETION)


def _rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("table", "json", "md"), help="what to print (default: as -o says)"
    )
    parser.add_argument(
        "--preset", choices=PRESETS, help="rules to start from (default: the daemon's default)"
    )
    parser.add_argument(
        "--set",
        type=arg.setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, for example rules.exact_repeat.soft=3; repeatable",
    )
    parser.add_argument("--attended", action="store_true", help="judge as if a person were watching")
