"""Verbs about tokens, and about who did what."""

from __future__ import annotations

import argparse
import os

from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import Failure
from loopd.cli.instants import clock, now_ms, span, until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

SCOPES = (
    "read", "read.content", "send", "control", "create", "cron", "approve", "export", "metrics", "admin",
)  # fmt: skip
"""Equal to the protocol's (a test says so)."""


def token_new(parser: argparse.ArgumentParser) -> None:
    """`loopctl token new`."""
    parser.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        default=[],
        metavar="SCOPE",
        help=f"what it may do; repeatable: {', '.join(SCOPES)}",
    )
    parser.add_argument(
        "-l",
        "--label",
        type=arg.label,
        action="append",
        default=[],
        metavar="K=V",
        help="only sessions with this label exist for it; repeatable: all must fit",
    )
    parser.add_argument(
        "--expires",
        type=arg.moment,
        metavar="WHEN",
        help="when it ends: 30d, '2027-01-01 00:00' (default: never)",
    )
    parser.add_argument("--note", default="", metavar="TEXT", help="whose it is and what for")
    parser.add_argument(
        "--channel",
        action="store_true",
        help="for a program: its messages never count as a person's",
    )
    _file(parser)


def token_rotate(parser: argparse.ArgumentParser) -> None:
    """`loopctl token rotate`."""
    parser.add_argument("kid", metavar="KID", help="id of the token; see `loopctl token list`")
    parser.add_argument(
        "--grace",
        type=arg.duration,
        default=0,
        metavar="DUR",
        help="how long the old one still works (default: 0s)",
    )
    _file(parser)


def token_revoke(parser: argparse.ArgumentParser) -> None:
    """`loopctl token revoke`."""
    parser.add_argument("kid", metavar="KID", nargs="+", help="ids of tokens; see `loopctl token list`")
    arg.reason(parser)


def audit_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl audit`."""
    arg.sid(parser, "?", "only what was done to this session")
    parser.add_argument(
        "--principal", metavar="WHO", help="only this one: uid:1000, token:ab12, 'token:*', 'agent:*'"
    )
    parser.add_argument("--denied", action="store_true", help="only what was refused")
    parser.add_argument("--after", type=arg.seq, metavar="SEQ", help="only after this event")
    arg.limit(parser, 100, "how many entries")


def _file(parser: argparse.ArgumentParser) -> None:
    file = parser.add_argument(
        "--to", metavar="FILE", help="write the token to this new file (mode 0600) instead of printing it"
    )
    arg.complete(file, **arg.FILE_COMPLETION)


# -- carrying out ---------------------------------------------------------------------------------


def new(run: Run) -> None:
    """Make a token and show it, this once."""
    args = run.args
    if not args.scope:
        raise Failure("usage", "no scope", hint="try `loopctl token new --scope read`")
    command: dict[str, Any] = {"t": "token.new", "scopes": args.scope, "note": args.note}
    if args.label:
        command["labels"] = dict(args.label)
    if args.expires is not None:
        command["expires_ms"] = args.expires
    if args.channel:
        command["source"] = "channel"
    _hand_over(run, command)


def rotate(run: Run) -> None:
    """Replace a token by a new one with the same rights."""
    _hand_over(run, {"t": "token.rotate", "kid": run.args.kid, "grace_ms": run.args.grace})


def _hand_over(run: Run, command: dict[str, Any]) -> None:
    path = run.args.to
    # The file first: a token that cannot be written down would be lost, and nobody could use it.
    file = None if path is None else _fresh(path)
    try:
        answer = run.link.change(command)
        token = answer.pop("token", None)
        if token is None:
            raise Failure(
                "conflict", f"token {answer.get('kid')} was made before with this key; it is shown only once"
            )
        if file is not None:
            os.write(file, f"{token}\n".encode())
    except BaseException:
        if path is not None:
            os.unlink(path)
        raise
    finally:
        if file is not None:
            os.close(file)
    if run.console.format != "table":
        run.console.json(answer if path is not None else {**answer, "token": token})
        return
    if path is None:
        run.console.line(token)
    run.console.err.write(
        f"token {answer['kid']}: {', '.join(answer['scopes'])}{_only(answer)}; "
        f"{'it is shown only this once' if path is None else f'written to {path}'}\n"
    )


def _only(token: dict[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in token.get("labels", {}).items())
    return f", only sessions with {safe(labels)}" if labels else ""


def _fresh(path: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Failure("invalid", f"{path}: {error.strerror}; expected a place for a new file") from None


def tokens(run: Run) -> None:
    """All tokens, never their secrets."""
    listed = run.link.ask({"t": "token.list"})["tokens"]
    console, now = run.console, now_ms()
    if console.format == "json":
        console.json({"tokens": listed})
        return
    if console.format == "ndjson":
        for token in listed:
            console.json(token)
        return
    if not listed:
        console.line("no tokens; `loopctl token new --help` shows how to make one")
        return
    console.table(
        ("KID", "STATE", "SCOPES", "SESSIONS", "EXPIRES", "USED", "NOTE"),
        [
            [
                Cell(token["kid"], "bold"),
                Cell(token["state"], "" if token["state"] == "in force" else "dim"),
                ",".join(token["scopes"]),
                ",".join(f"{name}={value}" for name, value in token["labels"].items()) or "all",
                until(token["expires_ms"], now) if token["expires_ms"] else "never",
                f"{span(max(0, now - token['used_ms']))} ago" if token.get("used_ms") else "-",
                token["note"],
            ]
            for token in listed
        ],
        flex=6,
        optional=(5, 4),
    )


def revoke(run: Run) -> None:
    """End tokens at once."""
    for kid in run.args.kid:
        answer = run.link.change({"t": "token.revoke", "kid": kid, "reason": run.args.reason})
        if run.console.format == "table":
            run.console.line(f"revoked {safe(kid)}; its connections are closed")
        else:
            run.console.json(answer)


def audit(run: Run) -> None:
    """Who did what."""
    args, console = run.args, run.console
    command: dict[str, Any] = {"t": "audit", "limit": min(args.limit, 1_000), "denied": args.denied}
    command |= {
        name: value for name in ("sid", "principal", "after") if (value := getattr(args, name)) is not None
    }
    answer = run.link.ask(command)
    if console.format == "json":
        console.json(answer)
    elif console.format == "ndjson":
        for entry in answer["entries"]:
            console.json(entry)
    elif not answer["entries"]:
        console.line("nothing")
    else:
        now = now_ms()
        console.table(
            ("SEQ", "WHEN", "WHO", "SESSION", "WHAT", "HOW"),
            [
                [
                    str(entry["seq"]),
                    clock(entry["at_ms"], now),
                    Cell(entry["principal"], "bold"),
                    entry["sid"] or "-",
                    Cell(entry["what"], "red" if entry["what"] == "command.denied" else ""),
                    " ".join(f"{name}={_said(value)}" for name, value in entry["b"].items()),
                ]
                for entry in answer["entries"]
            ],
            flex=5,
        )


def _said(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
