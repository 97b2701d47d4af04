"""Which arguments each verb takes: one function per verb."""

from __future__ import annotations

import argparse

from loopd.cli import amounts, instants
from loopd.cli import arguments as arg
from loopd.cli.agents import acp_arguments
from loopd.cli.chat_options import chat_arguments
from loopd.cli.permissions import policy_arguments


def new(parser: argparse.ArgumentParser) -> None:
    """`loopctl new`."""
    file = parser.add_argument(
        "-f", "--file", metavar="TOML", help="read the session from a file; options here win"
    )
    arg.complete(file, **arg.FILE_COMPLETION)
    parser.add_argument("--driver", choices=("scripted", "chat", "acp"), help="what takes the turns")
    parser.add_argument("--name", metavar="NAME", help="unique name (default: made from the id)")
    parser.add_argument(
        "--goal", metavar="TEXT", help="goal; an active goal makes the daemon continue by itself"
    )
    workspace = parser.add_argument(
        "--workspace", metavar="DIR", help="folder that file tools are confined to"
    )
    arg.complete(workspace, **arg.FILE_COMPLETION)
    parser.add_argument(
        "-l", "--label", type=arg.label, action="append", default=[], metavar="K=V", help="label; repeatable"
    )
    parser.add_argument("--preset", choices=("published", "hardened"), help="rules to start from")
    parser.add_argument(
        "--set",
        type=arg.setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, for example rules.repeated_text.threshold=5",
    )
    parser.add_argument(
        "--budget",
        type=amounts.limit,
        action="append",
        default=[],
        metavar="BUDGET",
        help="a limit: tokens=2M/5h, cost=4.50/1d, wall=2h, turns=100; repeatable",
    )
    parent = parser.add_argument(
        "--parent", metavar="SID", help="count what it spends into this session's budgets as well"
    )
    arg.complete(parent, **arg.SESSION_COMPLETION)
    policy_arguments(parser)
    scripted = parser.add_argument_group("--driver scripted")
    script = scripted.add_argument("--script", metavar="FILE", help="trajectory, .jsonl or .jsonl.gz")
    arg.complete(script, **arg.FILE_COMPLETION)
    scripted.add_argument(
        "--once", action="store_true", help="complete the goal at the end instead of repeating the last turn"
    )
    scripted.add_argument("--delay", type=arg.duration, metavar="DUR", help="pause before each step")
    chat_arguments(parser)
    acp_arguments(parser)


def send(parser: argparse.ArgumentParser) -> None:
    """`loopctl send`."""
    arg.selection(parser)
    parser.add_argument("text", metavar="TEXT", help="message; `-` reads standard input")
    parser.add_argument("--dedupe", metavar="KEY", help="the same key again is accepted once")


def suspend(parser: argparse.ArgumentParser) -> None:
    """`loopctl suspend`."""
    arg.selection(parser)
    arg.reason(parser)
    parser.add_argument(
        "--until",
        type=arg.moment,
        metavar="WHEN",
        help="lift by itself then: 30m, 18:00, 'tomorrow 09:00', ISO 8601",
    )
    parser.add_argument(
        "--mode",
        choices=("after_turn", "interrupt", "kill"),
        default="after_turn",
        help="what happens to a running turn (default: after_turn)",
    )
    parser.add_argument(
        "--quarantine", action="store_true", help="human messages wait as well instead of lifting it"
    )


def unsuspend(parser: argparse.ArgumentParser) -> None:
    """`loopctl unsuspend`."""
    arg.selection(parser)
    arg.reason(parser)


def interrupt(parser: argparse.ArgumentParser) -> None:
    """`loopctl interrupt`."""
    arg.selection(parser)
    parser.add_argument(
        "--for",
        dest="for_ms",
        type=arg.duration,
        metavar="DUR",
        help="nothing automatic starts for so long (default: 5m)",
    )
    parser.add_argument("--suspend", action="store_true", help="suspend it as well")
    arg.reason(parser)


def end(parser: argparse.ArgumentParser) -> None:
    """`loopctl end`."""
    arg.selection(parser)
    arg.reason(parser)


def gate_extend(parser: argparse.ArgumentParser) -> None:
    """`loopctl gate extend`."""
    arg.selection(parser, behind=("KIND", "which hold, if there are several"))
    parser.add_argument("--kind", type=arg.hold, metavar="KIND", help="which hold, for all that are selected")
    parser.add_argument(
        "--until", type=arg.moment, required=True, metavar="WHEN", help="the new, later deadline"
    )


def gate_open(parser: argparse.ArgumentParser) -> None:
    """`loopctl gate open`."""
    arg.selection(parser)
    parser.add_argument("--kind", type=arg.hold, metavar="KIND", help="only this hold")
    arg.reason(parser)


def one_session(parser: argparse.ArgumentParser) -> None:
    """`loopctl why, gate get, …: one session`."""
    arg.sid(parser)


def goal_set(parser: argparse.ArgumentParser) -> None:
    """`loopctl goal set`."""
    arg.selection(parser)
    parser.add_argument("text", metavar="TEXT", help="the goal; `-` reads standard input")


def goal_switch(parser: argparse.ArgumentParser) -> None:
    """`loopctl goal pause|resume|clear`."""
    arg.selection(parser)


def goal_end(parser: argparse.ArgumentParser) -> None:
    """`loopctl goal complete|infeasible`."""
    arg.selection(parser)
    arg.reason(parser)


def tail(parser: argparse.ArgumentParser) -> None:
    """`loopctl tail`."""
    arg.sid(parser, "?", "id or name of a session (default: all sessions)")
    arg.limit(parser, 20, "how many of the last events")
    parser.add_argument("-f", "--follow", action="store_true", help="then wait for more")
    parser.add_argument(
        "-k",
        "--kind",
        action="append",
        default=[],
        metavar="KIND",
        help="only this kind, or a prefix such as 'gate.*'",
    )


def show(parser: argparse.ArgumentParser) -> None:
    """`loopctl show`."""
    action = parser.add_argument("turn", metavar="SID[@N]", help="a turn; without @N the last one")
    arg.complete(action, **arg.SESSION_COMPLETION)
    parser.add_argument(
        "--at",
        metavar="SEQ|WHEN",
        help="the session as it was then: a sequence number, 8h (ago), 18:00, 'yesterday 09:00'",
    )
    parser.add_argument("--prompt", action="store_true", help="what the model saw")
    parser.add_argument(
        "--calls",
        action="store_true",
        help="model calls that went through the proxy; -o json: their exact bytes",
    )
    parser.add_argument(
        "--step",
        type=arg.count,
        default=1,
        metavar="K",
        help="with --prompt: the request of the turn's K-th step",
    )


def watch(parser: argparse.ArgumentParser) -> None:
    """`loopctl watch`."""
    arg.sid(parser, "*", "only these sessions (default: all)")
    parser.add_argument(
        "-k",
        "--kind",
        action="append",
        default=[],
        metavar="KIND",
        help="only this kind, or a prefix such as 'gate.*'; repeatable",
    )
    parser.add_argument(
        "--after", type=arg.seq, metavar="SEQ", help="begin behind this sequence number (default: now)"
    )
    cursor = parser.add_argument(
        "--cursor-file",
        metavar="FILE",
        help="begin where the last run with this file ended, and keep it up to date",
    )
    arg.complete(cursor, **arg.FILE_COMPLETION)
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="go on where this consumer is, with its selection, and acknowledge what was printed",
    )
    parser.add_argument("-n", "--lines", dest="limit", type=arg.count, metavar="N", help="end after N events")
    parser.add_argument(
        "--reconnect",
        action="store_true",
        help="when the daemon goes away, wait for it and go on without a hole",
    )
    parser.add_argument("--deltas", action="store_true", help="streamed text as well (may be incomplete)")


def wait(parser: argparse.ArgumentParser) -> None:
    """`loopctl wait`."""
    arg.sid(parser)
    parser.add_argument(
        "--until", required=True, metavar="STATE", help="idle | open | closed | ended | turn>N"
    )


def verify(parser: argparse.ArgumentParser) -> None:
    """`loopctl verify`."""
    arg.sid(parser, "?", "only this session; or an export, FILE.zip")
    parser.add_argument(
        "--suspended-since",
        type=arg.seq,
        metavar="SEQ",
        help="also prove that no turn started since the suspension answered with SEQ",
    )
    parser.add_argument(
        "--invariants", action="store_true", help="show of each invariant how much was checked and found"
    )
    anchors = parser.add_argument(
        "--anchors",
        metavar="FILE",
        help="anchors that were kept elsewhere (events of a webhook or a stream, `anchor export`, log lines): the "
        "log must still contain them",
    )
    arg.complete(anchors, **arg.FILE_COMPLETION)
    data = parser.add_argument(
        "--data",
        metavar="DIR",
        help="read this data folder (or journal file) instead of asking a daemon; nothing is written",
    )
    arg.complete(data, **arg.FILE_COMPLETION)
    parser.add_argument(
        "--anchor",
        metavar="SEQ:HASH",
        help="with --data: head and head_hash of an earlier proof, still to be there",
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="KEY",
        help="public key (hex) that must have signed FILE.zip, or the anchors of --anchors; repeatable",
    )


def cron_put(parser: argparse.ArgumentParser) -> None:
    """`loopctl cron put`."""
    arg.selection(parser)
    parser.add_argument("job", metavar="JOB", help="name of the job; an existing one is replaced")
    parser.add_argument("expr", metavar="EXPR", help="five cron fields in quotes")
    parser.add_argument("text", metavar="TEXT", help="message; `-` reads standard input")
    parser.add_argument(
        "--tz", default="UTC", metavar="ZONE", help="time zone, for example Europe/Berlin (default: UTC)"
    )
    parser.add_argument(
        "--missed",
        choices=("skip", "one", "all"),
        default="one",
        help="moments that passed while the daemon was down (default: one)",
    )
    parser.add_argument(
        "--catchup",
        type=arg.duration,
        default=instants.DAY,
        metavar="DUR",
        help="how far back those count (default: 1d)",
    )


def cron_job(parser: argparse.ArgumentParser) -> None:
    """`loopctl cron pause|resume|remove|run`."""
    arg.selection(parser)
    parser.add_argument("job", metavar="JOB", help="name of the job")


def cron_next(parser: argparse.ArgumentParser) -> None:
    """`loopctl cron next`."""
    arg.sid(parser, "?")
    parser.add_argument("job", metavar="JOB", nargs="?", help="name of the job")
    parser.add_argument("--expr", metavar="EXPR", help="try out an expression instead")
    parser.add_argument("--tz", default="UTC", metavar="ZONE", help="its time zone (default: UTC)")
    arg.limit(parser, 5, "how many moments")


def cron_list(parser: argparse.ArgumentParser) -> None:
    """`loopctl cron list`."""
    arg.sid(parser, "?", "only this session")


def cron_history(parser: argparse.ArgumentParser) -> None:
    """`loopctl cron history`."""
    arg.sid(parser)
    parser.add_argument("job", metavar="JOB", nargs="?", help="only this job")
    arg.limit(parser, 100, "how many occurrences")


def inbox_drop(parser: argparse.ArgumentParser) -> None:
    """`loopctl inbox drop`."""
    arg.sid(parser)
    parser.add_argument("id", metavar="ID", help="id of the envelope")


def freeze(parser: argparse.ArgumentParser) -> None:
    """`loopctl freeze`."""
    arg.reason(parser)
    parser.add_argument("--interrupt", action="store_true", help="cut running turns as well")


def drain(parser: argparse.ArgumentParser) -> None:
    """`loopctl drain`."""
    parser.add_argument(
        "--budget",
        type=arg.duration,
        metavar="DUR",
        help="how long turns may finish (default: drain.budget_ms)",
    )
    parser.add_argument("--wait", action="store_true", help="return when the daemon is gone")


def stop(parser: argparse.ArgumentParser) -> None:
    """`loopctl stop`."""
    parser.add_argument("--wait", action="store_true", help="return when the daemon is gone")


def completion(parser: argparse.ArgumentParser) -> None:
    """`loopctl completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "powershell"), help="for which shell")
    parser.add_argument(
        "--program",
        choices=("loopctl", "loopd"),
        default="loopctl",
        help="for which command (default: loopctl)",
    )
