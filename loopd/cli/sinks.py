"""Verbs about consumers (named cursors) and webhooks."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import Failure
from loopd.cli.instants import now_ms, span, until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run


def _name(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("name", metavar="NAME", help=f"name of the {what}")


def _kinds(parser: argparse.ArgumentParser, none: str) -> None:
    parser.add_argument(
        "-k",
        "--kind",
        action="append",
        default=[],
        metavar="KIND",
        help=f"kind of event or pattern such as 'gate.*'; repeatable (default: {none})",
    )


def _after(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--after",
        type=arg.seq,
        metavar="SEQ",
        help="begin after this event; 0: at the beginning (default: now)",
    )


def consumer_create(parser: argparse.ArgumentParser) -> None:
    """`loopctl consumer create`."""
    _name(parser, "consumer")
    _kinds(parser, "all")
    parser.add_argument(
        "--session", action="append", default=[], metavar="SID", help="only of this session; repeatable"
    )
    _after(parser)


def consumer_ack(parser: argparse.ArgumentParser) -> None:
    """`loopctl consumer ack`."""
    _name(parser, "consumer")
    parser.add_argument("seq", metavar="SEQ", type=arg.seq, help="everything up to here is done with")
    parser.add_argument("--rewind", action="store_true", help="permit an earlier place than before")


def consumer_name(parser: argparse.ArgumentParser) -> None:
    """`loopctl consumer delete`."""
    _name(parser, "consumer")


def webhook_create(parser: argparse.ArgumentParser) -> None:
    """`loopctl webhook create`."""
    _name(parser, "webhook")
    parser.add_argument("address", metavar="URL", help="where events are POSTed")
    _kinds(parser, "what operators want to hear of")
    parser.add_argument(
        "-l",
        "--label",
        type=arg.label,
        action="append",
        default=[],
        metavar="K=V",
        help="only sessions with this label",
    )
    parser.add_argument(
        "--format",
        choices=("json", "ntfy", "slack"),
        default="json",
        help="the event itself, or a sentence for people (default: json)",
    )
    parser.add_argument(
        "--content", action="store_true", help="also what was said, not only that something was"
    )
    secret = parser.add_argument(
        "--secret-file", metavar="FILE", help="sign with this secret (default: a random one is shown)"
    )
    arg.complete(secret, **arg.FILE_COMPLETION)
    _after(parser)
    parser.add_argument(
        "--give-up", type=arg.duration, metavar="DUR", help="how long a 4xx is tried again (default: 1h)"
    )


def webhook_name(parser: argparse.ArgumentParser) -> None:
    """`loopctl webhook delete`."""
    _name(parser, "webhook")


def webhook_retry(parser: argparse.ArgumentParser) -> None:
    """`loopctl webhook retry`."""
    _name(parser, "webhook")
    parser.add_argument("--dead", action="store_true", help="from the oldest dead letter on, once more")


# -- carrying out ---------------------------------------------------------------------------------


def create_consumer(run: Run) -> None:
    """Make a named cursor."""
    args = run.args
    command: dict[str, Any] = {"t": "consumer.create", "name": args.name}
    command |= {"kinds": args.kind} if args.kind else {}
    command |= {"sids": args.session} if args.session else {}
    command |= {} if args.after is None else {"after": args.after}
    answer = run.link.change(command)
    _told(run, answer, f"consumer {safe(args.name)} begins after {answer['cursor']['seq']}")


def ack(run: Run) -> None:
    """Move a cursor."""
    args = run.args
    answer = run.link.change({"t": "consumer.ack", "name": args.name, "seq": args.seq, "rewind": args.rewind})
    _told(
        run,
        answer,
        f"consumer {safe(args.name)} is at {answer['cursor']['seq']}, {answer['lag']} events behind",
    )


def consumers(run: Run) -> None:
    """All named cursors."""
    listed = run.link.ask({"t": "consumer.list"})["consumers"]
    if _machine(run, "consumers", listed):
        return
    if not listed:
        run.console.line("no consumers; `loopctl consumer create --help` shows how to make one")
        return
    now = now_ms()
    run.console.table(
        ("NAME", "AT", "BEHIND", "ACKED", "KINDS", "OWNER"),
        [
            [
                Cell(row["name"], "bold"),
                str(row["cursor"]["seq"]),
                Cell(str(row["lag"]), "yellow" if row["lag"] > 10_000 else ""),
                f"{span(max(0, now - row['acked_ms']))} ago",
                ",".join(row["kinds"]) or "all",
                row["owner"],
            ]
            for row in listed
        ],
        flex=4,
    )


def forget(run: Run) -> None:
    """Delete a consumer or a webhook."""
    kind = run.verb.partition(" ")[0]
    answer = run.link.change({"t": f"{kind}.delete", "name": run.args.name})
    _told(run, answer, f"{kind} {safe(run.args.name)} is forgotten")


def create_webhook(run: Run) -> None:
    """Send events somewhere."""
    args = run.args
    command: dict[str, Any] = {
        "t": "webhook.create",
        "name": args.name,
        "url": args.address,
        "format": args.format,
    }
    command |= {"kinds": args.kind} if args.kind else {}
    command |= {"labels": dict(args.label)} if args.label else {}
    command |= {"content": True} if args.content else {}
    command |= {} if args.after is None else {"after": args.after}
    command |= {} if args.give_up is None else {"give_up_ms": args.give_up}
    if args.secret_file:
        try:
            with open(args.secret_file, encoding="utf-8") as file:
                command["secret"] = file.read(1_024).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure("invalid", f"secret file {args.secret_file}: {error}") from None
    answer = run.link.change(command)
    _told(
        run, answer, f"webhook {safe(args.name)} sends to {answer['origin']}, after event {answer['cursor']}"
    )
    if "secret" in answer and run.console.format == "table":
        run.console.line(answer["secret"])
        run.console.err.write("its signing secret, shown only this once\n")


def webhooks(run: Run) -> None:
    """All webhooks and how they fare."""
    listed = run.link.ask({"t": "webhook.list"})["webhooks"]
    if _machine(run, "webhooks", listed):
        return
    if not listed:
        run.console.line("no webhooks; `loopctl webhook create --help` shows how to make one")
        return
    now = now_ms()
    run.console.table(
        ("NAME", "STATE", "WHY", "NEXT TRY", "BEHIND", "SENT", "DEAD", "TO"),
        [
            [
                Cell(row["name"], "bold"),
                Cell(row["state"], "red" if row["state"] == "failing" else "green"),
                f"{row['tries']} tries: {row['error']}" if row["tries"] else "-",
                until(row["next_ms"], now) if row["next_ms"] else "-",
                str(row["lag"]),
                str(row["delivered"]),
                Cell(str(row["dead_count"]), "yellow" if row["dead_count"] else ""),
                row["origin"],
            ]
            for row in listed
        ],
        flex=2,
        optional=(5, 4),
    )


def retry(run: Run) -> None:
    """Try a webhook now."""
    answer = run.link.change({"t": "webhook.retry", "name": run.args.name, "dead": run.args.dead})
    _told(run, answer, f"webhook {safe(run.args.name)} is tried now, from event {answer['cursor'] + 1} on")


def _told(run: Run, answer: dict[str, Any], words: str) -> None:
    if run.console.format == "table":
        run.console.line(words)
    else:
        run.console.json(answer)


def _machine(run: Run, name: str, rows: list[dict[str, Any]]) -> bool:
    if run.console.format == "json":
        run.console.json({name: rows})
    elif run.console.format == "ndjson":
        for row in rows:
            run.console.json(row)
    return run.console.format != "table"
