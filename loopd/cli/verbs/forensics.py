"""Verbs that explain and hand on what happened."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli.verbs.verb import Verb


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        type=arg.setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another setting, for example rules.exact_repeat.soft=3",
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    action = parser.add_argument("sid", metavar="SID|FILE.zip", help="session, or an export of one")
    arg.complete(action, **arg.SESSION_COMPLETION)
    _settings(parser)


def _fork(parser: argparse.ArgumentParser) -> None:
    action = parser.add_argument(
        "turn", metavar="SID[@N]", help="behind which turn; without @N the last one that is over"
    )
    arg.complete(action, **arg.SESSION_COMPLETION)
    parser.add_argument("--name", metavar="NAME", help="unique name (default: made from the id)")
    parser.add_argument("--open", action="store_true", help="let it go on at once (default: begin suspended)")
    parser.add_argument("--goal", metavar="TEXT", help="another goal; empty for none")
    workspace = parser.add_argument(
        "--workspace", metavar="DIR", help="another folder; the parent's own is not turned back to that turn"
    )
    arg.complete(workspace, **arg.FILE_COMPLETION)
    parser.add_argument(
        "-l",
        "--label",
        type=arg.label,
        action="append",
        default=[],
        metavar="K=V",
        help="labels in place of the parent's",
    )
    _settings(parser)


def _diff(parser: argparse.ArgumentParser) -> None:
    for name, meaning in (
        ("a", "a turn"),
        ("b", "another turn, also of another session; a bare number is one of the same"),
    ):
        action = parser.add_argument(name, metavar="SID@N" if name == "a" else "SID@M", help=meaning)
        arg.complete(action, **arg.SESSION_COMPLETION)
    parser.add_argument(
        "--step", type=arg.count, default=1, metavar="K", help="request of the first turn's K-th step"
    )
    parser.add_argument(
        "--other-step", type=arg.count, default=1, metavar="K", help="request of the second turn's K-th step"
    )


def _anchors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=arg.seq, metavar="SEQ", help="only those behind this sequence number")
    arg.limit(parser, 20, "show the last N")


def _anchor_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--after", type=arg.seq, metavar="SEQ", help="only those behind this sequence number")
    file = parser.add_argument("-f", "--file", metavar="FILE", help="where to (default: standard output)")
    arg.complete(file, **arg.FILE_COMPLETION)
    parser.add_argument("--append", action="store_true", help="add to the file")


def _export(parser: argparse.ArgumentParser) -> None:
    arg.sid(parser, "?")
    parser.add_argument("--all", action="store_true", help="the whole log")
    file = parser.add_argument(
        "-f", "--file", metavar="FILE", help="where to (default: loopd-SID.zip here; `-`: standard output)"
    )
    arg.complete(file, **arg.FILE_COMPLETION)
    parser.add_argument(
        "--format",
        choices=("zip", "html", "otlp-json", "ndjson"),
        default="zip",
        help="zip: an archive that verifies alone; html: a timeline to look at; otlp-json: OpenTelemetry spans; "
        "ndjson: the rows (default: zip)",
    )
    parser.add_argument(
        "--redact",
        choices=("none", "secrets", "content"),
        default="none",
        help="secrets: what looks like a key, token or password; content: all that was said (default: none)",
    )
    parser.add_argument(
        "--since",
        type=arg.past,
        metavar="WHEN",
        help="only events from then on: 8h, 18:00, 'yesterday 09:00'",
    )
    parser.add_argument("--until", type=arg.past, metavar="WHEN", help="only events before then")
    parser.add_argument(
        "--links",
        action="store_true",
        help="also what ties the session to the log and its anchors; this tells when other sessions did something, "
        "and of what kind",
    )
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    data = parser.add_argument(
        "--data", metavar="DIR", help="read this data folder instead of asking a daemon"
    )
    arg.complete(data, **arg.FOLDER_COMPLETION)


def _import(parser: argparse.ArgumentParser) -> None:
    file = parser.add_argument(
        "file", metavar="FILE.zip", help="what `loopctl export` wrote; with --drop an imported session"
    )
    arg.complete(file, **arg.FILE_COMPLETION)
    parser.add_argument("--drop", action="store_true", help="forget an imported session")


VERBS: dict[str, Verb] = {
    "replay": Verb(
        "decide a recorded session again: the same, byte for byte?",
        "replaying:replay",
        _replay,
        "loopctl replay mapper",
        "loopctl replay mapper --set rules.exact_repeat.soft=3",
        "loopctl replay loopd-mapper.zip -o json",
    ),
    "fork": Verb(
        "a new session that knows what another one knew after a turn",
        "forensics:fork",
        _fork,
        "loopctl fork mapper@12",
        "loopctl fork mapper@12 --open --goal 'try the other library' --workspace ./copy",
    ),
    "diff": Verb(
        "what the model saw in one turn and not in another",
        "forensics:diff",
        _diff,
        "loopctl diff mapper@3 mapper@7",
        "loopctl diff mapper@12 fork@13 -o json",
    ),
    "anchor list": Verb(
        "signed heads of the log",
        "forensics:anchors",
        _anchors,
        "loopctl anchor list",
        "loopctl anchor list -o json",
    ),
    "anchor export": Verb(
        "anchors as lines, to be kept elsewhere",
        "forensics:export_anchors",
        _anchor_export,
        "loopctl anchor export > /mnt/elsewhere/anchors.ndjson",
        "loopctl verify --anchors /mnt/elsewhere/anchors.ndjson",
    ),
    "export": Verb(
        "an archive that verifies alone, a timeline, or spans",
        "copying:export",
        _export,
        "loopctl export mapper",
        "loopctl export mapper --redact secrets -f for-the-auditor.zip",
        "loopctl export mapper --format html -f mapper.html",
        "loopctl export --all --since 'yesterday 09:00'",
    ),
    "import": Verb(
        "read an exported session here; it never runs",
        "copying:bring_in",
        _import,
        "loopctl import loopd-mapper.zip",
        "loopctl import --drop imp_0a1b2c3d4e5f",
    ),
}

GROUPS = {"anchor": "signed heads of the log"}
DEFAULT_MEMBERS = {"anchor": "list"}
