"""The verbs `budget` and `set`: what may be spent, and settings of a session that lives."""

from __future__ import annotations

from loopd.cli import amounts
from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import OK, Failure
from loopd.cli.instants import now_ms, span, until
from loopd.cli.permissions import policy_arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from loopd.cli.run import Run

NEAR_PERCENT = 80


# -- arguments ----------------------------------------------------------------------------------


def whose(parser: argparse.ArgumentParser) -> None:
    """A session, a label, or (for reading) neither."""
    arg.sid(parser, "?", "id or name of a session; none: everything that has a limit")
    _label(parser)


def _label(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-l", "--label", metavar="K=V", help="all sessions with this label together")


def set_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl budget set`."""
    arg.sid(parser, "?", "id or name of a session; or -l")
    parser.add_argument(
        "limits",
        metavar="BUDGET",
        nargs="*",
        help="tokens=2M/5h, input=1M, output=200k, cost=4.50/1d, wall=2h, turns=100",
    )
    _label(parser)
    arg.reason(parser)


def remove_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl budget remove`."""
    arg.sid(parser, "?", "id or name of a session; or -l")
    parser.add_argument("limits", metavar="NAME", nargs="*", help="tokens, tokens/5h, cost/1d, …")
    _label(parser)
    arg.reason(parser)


def config_arguments(parser: argparse.ArgumentParser) -> None:
    """`loopctl set`."""
    arg.sid(parser)
    parser.add_argument(
        "settings", type=arg.setting, nargs="*", metavar="KEY=VALUE", help="settings to change"
    )
    parser.add_argument(
        "--unset", action="append", default=[], metavar="KEY", help="back to what the preset says; repeatable"
    )
    parser.add_argument("--no-policy", action="store_true", help="forget all rules about tool calls")
    policy_arguments(parser)
    arg.reason(parser)


# -- verbs --------------------------------------------------------------------------------------


def show(run: Run) -> int:
    """Limits, what is spent of them, and until when."""
    answer = run.link.ask({"t": "budget.get", **_whose(run, needed=False)})
    if run.console.format != "table":
        run.console.json(answer)
        return OK
    _table(run, answer)
    return OK


def set_limits(run: Run) -> int:
    """Sets limits; raising a spent one lets the session go on."""
    return _change(run, amounts.limit)


def remove_limits(run: Run) -> int:
    """Removes limits."""
    return _change(run, amounts.named)


def _change(run: Run, parse: Any) -> int:
    import argparse

    of = _whose(run, needed=True)
    words = list(run.args.limits)
    if run.args.label is not None and run.args.sid is not None:
        words.insert(0, run.args.sid)  # with -l there is no session: its place is the first limit
    if not words:
        raise Failure(
            "usage", "which budget? expected for example tokens=2M/5h", hint=f"loopctl {run.verb} --help"
        )
    try:
        parsed = [parse(word) for word in words]
    except argparse.ArgumentTypeError as error:
        raise Failure("usage", str(error)) from None
    answer: dict[str, Any] = {}
    for limit in parsed:
        command = {"t": "budget.set", **of, **limit}
        if run.args.reason:
            command["reason"] = run.args.reason
        answer = run.link.change(command)
    if run.console.format != "table":
        run.console.json(answer)
        return OK
    _table(run, answer)
    if answer.get("holds"):
        kinds = ", ".join(hold["kind"] for hold in answer["holds"])
        run.console.line(f"the gate stays closed by {kinds}")
    return OK


def _whose(run: Run, *, needed: bool) -> dict[str, Any]:
    if run.args.label is not None:
        return {"label": run.args.label}
    if run.args.sid is not None:
        return {"sid": run.args.sid}
    if needed:
        raise Failure("usage", "whose budget? expected SID or -l KEY=VALUE")
    return {}


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
    """Changes settings of a session for its next turn."""
    args = run.args
    command: dict[str, Any] = {"t": "session.set", "sid": args.sid}
    if args.settings:
        command["set"] = dict(args.settings)
    if args.unset:
        command["unset"] = args.unset
    if args.policy:
        command["policy"] = args.policy
    elif args.no_policy:
        command["policy"] = []
    if args.reason:
        command["reason"] = args.reason
    if len(command) <= 2:
        raise Failure(
            "usage", "what is to change? expected KEY=VALUE, --unset KEY or a rule", hint="loopctl set --help"
        )
    answer = run.link.change(command)
    if run.console.format != "table":
        run.console.json(answer)
        return OK
    when = "from the next turn on" if answer.get("effective") == "next_turn" else "now"
    run.console.line(f"{safe(args.sid)}: settings {answer.get('revision')} hold {when}")
    run.console.pairs([(key, str(value)) for key, value in sorted((answer.get("settings") or {}).items())])
    for each in answer.get("policy") or []:
        conditions = ", ".join(
            f"{name} {value}" for name, value in each.items() if name not in {"effect", "reason"}
        )
        run.console.line(safe(f"{each['effect']} {conditions or 'everything'}"))
    return OK
