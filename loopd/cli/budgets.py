"""The verbs `budget` and `set`: what may be spent, and settings of a session that lives."""

from __future__ import annotations

from loopd.cli import amounts
from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import OK, Failure
from loopd.cli.instants import now_ms, span, until
from loopd.cli.permissions import policy_arguments
from loopd.cli.selection import change, changes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from loopd.cli.run import Run

NEAR_PERCENT = 80


# -- arguments ----------------------------------------------------------------------------------


def whose(parser: argparse.ArgumentParser) -> None:
    """A session, a label, or neither."""
    arg.sid(parser, "?", "id or name of a session; none: everything that has a limit")
    parser.add_argument("-l", "--label", metavar="K=V", help="all sessions with this label together")


def set_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl budget set`: the limits stand behind the sessions."""
    _limits(parser, "BUDGET", "tokens=2M/5h, input=1M, output=200k, cost=4.50/1d, wall=2h, turns=100")


def remove_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl budget remove`: the names of limits stand behind the sessions."""
    _limits(parser, "NAME", "tokens, tokens/5h, cost/1d, …")


def _limits(parser: argparse.ArgumentParser, name: str, meaning: str) -> None:
    arg.selection(parser, behind=(name, meaning))
    parser.add_argument(
        "--each",
        action="store_true",
        help="with -l: a limit of its own for each of them; else they share one, those to come too",
    )
    arg.reason(parser)


def config_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl set`: the settings stand behind the sessions."""
    arg.selection(parser, behind=("KEY=VALUE", "settings to change"))
    parser.add_argument(
        "--unset", action="append", default=[], metavar="KEY", help="back to what the preset says; repeatable"
    )
    parser.add_argument("--no-policy", action="store_true", help="forget all rules about tool calls")
    policy_arguments(parser)
    arg.reason(parser)


# -- verbs --------------------------------------------------------------------------------------


def show(run: Run) -> int:
    """Limits, what is spent of them, and until when."""
    args = run.args
    of = (
        {"label": args.label} if args.label is not None else {"sid": args.sid} if args.sid is not None else {}
    )
    answer = run.link.ask({"t": "budget.get", **of})
    if run.console.format != "table":
        run.console.json(answer)
        return OK
    _table(run, answer)
    return OK


def set_limits(run: Run) -> int:
    """Sets limits; raising a spent one lets the session go on."""
    return _change(run, amounts.limit, "limited")


def remove_limits(run: Run) -> int:
    """Removes limits."""
    return _change(run, amounts.named, "rid of the limit")


def _change(run: Run, parse: Callable[[str], dict[str, Any]], done: str) -> int:
    import argparse

    args = run.args
    selected = bool(args.label or args.all)
    args.sid, words = _apart(args.sid, selected=selected, limits=parse is amounts.named)
    if not (args.sid or selected):
        raise Failure("usage", "whose budget? expected SID or -l KEY=VALUE")
    if not words:
        raise Failure(
            "usage", "which budget? expected for example tokens=2M/5h", hint=f"loopctl {run.verb} --help"
        )
    why = {"reason": args.reason} if args.reason else {}
    try:
        commands = [{"t": "budget.set", **parse(word), **why} for word in words]
    except argparse.ArgumentTypeError as error:
        raise Failure("usage", str(error)) from None
    if args.label and not args.each and not args.dry_run:
        return _shared(run, commands)
    answer, code = changes(run, commands, done)
    if answer is not None:
        _limits_told(run, answer)
    return code


def _apart(words: list[str], *, selected: bool, limits: bool) -> tuple[list[str], list[str]]:
    """Sessions, and the limits behind them: `KIND=AMOUNT`, or for removal `KIND[/WINDOW]`."""
    at = 0 if selected else 1
    while at < len(words) and not (
        "=" in words[at] or (limits and words[at].partition("/")[0] in amounts.KINDS)
    ):
        at += 1
    if (
        at == len(words) and len(words) == 2 - selected
    ):  # one word that is nothing of both is a mistyped limit
        at -= 1
    return words[:at], words[at:]


def _shared(run: Run, commands: list[dict[str, Any]]) -> int:
    """One limit for all sessions with a label together."""
    if len(run.args.label) > 1 or run.args.sid:
        raise Failure("usage", "a shared budget is that of one label; expected -l KEY=VALUE alone, or --each")
    ((key, value),) = run.args.label
    answer: dict[str, Any] = {}
    for command in commands:
        answer = run.link.change({**command, "label": f"{key}={value}"})
    if run.console.format == "table":
        _limits_told(run, answer)
    else:
        run.console.json(answer)
    return OK


def _limits_told(run: Run, answer: dict[str, Any]) -> None:
    _table(run, answer)
    if answer.get("holds"):
        kinds = ", ".join(hold["kind"] for hold in answer["holds"])
        run.console.line(f"the gate stays closed by {kinds}")


def _table(run: Run, answer: dict[str, Any]) -> None:
    console, now, currency = run.console, now_ms(), str(answer.get("currency") or "")
    spent = answer.get("spent")
    if spent:
        parts = [
            f"{spent['tokens']:,} tokens ({spent['input_tokens']:,} in, {spent['output_tokens']:,} out)",
            amounts.money(spent["cost"], currency) if answer.get("priced") else "",
            f"{span(spent['wall'])} of turns",
            f"{spent['turns']:,} turns",
        ]
        console.line("spent " + ", ".join(part for part in parts if part))
    budgets = answer.get("budgets") or []
    if budgets:
        named = any(each.get("name") for each in budgets)
        console.table(
            ("BUDGET", "OF", "USED", "LIMIT", "LEFT", "WINDOW", "UNTIL"),
            [
                [
                    Cell(str(each["kind"]), "bold"),
                    str(each.get("name") or each["scope"]) if named else str(each["scope"]),
                    Cell(amounts.shown(each["kind"], each["used"], currency), _mood(each)),
                    amounts.shown(each["kind"], each["limit"], currency),
                    amounts.shown(each["kind"], each["left"], currency)
                    if not each["spent"]
                    else Cell("none", "red"),
                    amounts.window(each.get("per_ms")),
                    until(each["until_ms"], now) if each.get("until_ms") is not None else "",
                ]
                for each in budgets
            ],
            flex=1,
        )
    else:
        console.line("no limits")
    if answer.get("more"):
        console.line("there are more sessions than are looked at here; ask for one, or for a label")
    for model, tokens in (answer.get("unpriced") or {}).items():
        console.line(
            safe(
                f"warning: no price is known for {model!r}: {tokens:,} tokens are not in any cost; "
                f"add it to [costs.prices] in the daemon's configuration"
            )
        )


def _mood(budget: dict[str, Any]) -> str:
    if budget["spent"]:
        return "red"
    return "yellow" if budget["used"] * 100 >= budget["limit"] * NEAR_PERCENT else ""


def change_settings(run: Run) -> int:
    """Changes settings of sessions for their next turn."""
    import argparse

    args = run.args
    sessions = [word for word in args.sid if "=" not in word]
    try:
        settings = dict(arg.setting(word) for word in args.sid if "=" in word)
    except argparse.ArgumentTypeError as error:
        raise Failure("usage", str(error)) from None
    args.sid = sessions
    command: dict[str, Any] = {"t": "session.set"}
    if settings:
        command["set"] = settings
    if args.unset:
        command["unset"] = args.unset
    if args.policy:
        command["policy"] = args.policy
    elif args.no_policy:
        command["policy"] = []
    if len(command) == 1:
        raise Failure(
            "usage", "what is to change? expected KEY=VALUE, --unset KEY or a rule", hint="loopctl set --help"
        )
    if args.reason:
        command["reason"] = args.reason
    answer, code = change(run, command, "changed")
    if answer is None:
        return code
    when = "from the next turn on" if answer.get("effective") == "next_turn" else "now"
    run.console.line(f"{safe(args.sid[0])}: settings {answer.get('revision')} hold {when}")
    run.console.pairs([(key, str(value)) for key, value in sorted((answer.get("settings") or {}).items())])
    for each in answer.get("policy") or []:
        conditions = ", ".join(
            f"{name} {value}" for name, value in each.items() if name not in {"effect", "reason"}
        )
        run.console.line(safe(f"{each['effect']} {conditions or 'everything'}"))
    return code
