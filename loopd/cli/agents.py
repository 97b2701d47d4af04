"""Hosted agents: how `loopctl new` names one, and the list of their kinds."""

from __future__ import annotations

import os
import shlex

from loopd.cli import arguments as arg
from loopd.cli.console import Cell, safe
from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from loopd.cli.run import Run


def acp_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `loopctl new --driver acp`, besides those that it shares with `chat`."""
    acp = parser.add_argument_group(
        "--driver acp", "--base-url, --model, --api-key-env, --system and --context-bytes count here too"
    )
    agent = acp.add_argument(
        "--agent",
        metavar="KIND",
        help="a kind that `loopctl agents` lists, or a TOML file that describes one",
    )
    arg.complete(agent, **arg.FILE_COMPLETION)
    acp.add_argument("--agent-command", metavar="CMD", help="command line of an agent of no known kind")
    acp.add_argument(
        "--agent-env", type=variable, action="append", default=[], metavar="NAME=VALUE", help="repeatable"
    )
    acp.add_argument("--mode", metavar="MODE", help="session mode of the agent (default: its unattended one)")
    acp.add_argument("--context-tokens", type=arg.count, metavar="N", help="window of the model, in tokens")
    acp.add_argument(
        "--silence", type=arg.duration, metavar="DUR", help="give up an agent that says nothing for so long"
    )


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    import argparse

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}; expected NAME=VALUE")
    return name, value


def acp_fields(args: argparse.Namespace, driver: dict[str, Any], base: str) -> None:
    """Put the options into the driver's spec; paths of kinds become absolute."""
    if args.agent is not None:
        driver["agent"] = args.agent
        driver.pop("command", None)
    if args.agent_command is not None:
        try:
            driver["command"] = shlex.split(args.agent_command)
        except ValueError as error:
            raise Failure("usage", f"--agent-command: {error}") from None
        driver.pop("agent", None)
    if args.agent_env:
        driver["env"] = {**driver.get("env", {}), **dict(args.agent_env)}
    given = {
        "mode": args.mode,
        "context_tokens": args.context_tokens,
        "silence_s": None if args.silence is None else max(1, args.silence // 1_000),
    }
    driver |= {name: value for name, value in given.items() if value is not None}
    agent = driver.get("agent")
    if not agent and not driver.get("command"):
        raise Failure(
            "usage", "--driver acp needs --agent KIND (`loopctl agents` lists them) or --agent-command"
        )
    if isinstance(agent, str) and (os.sep in agent or agent.endswith(".toml")):
        driver["agent"] = os.path.abspath(os.path.join("." if args.agent else base, agent))


def agents(run: Run) -> None:
    """Kinds of hosted agents, and whether the daemon finds them."""
    answer = run.link.ask({"t": "agents.list"})
    console, rows = run.console, answer["agents"]
    if console.format == "json":
        console.json(answer)
    elif console.format == "ndjson":
        for row in rows:
            console.json(row)
    else:
        console.table(("AGENT", "FOUND", "VERSION", "API", "NOTE"), [_row(row) for row in rows], flex=4)


def _row(row: dict[str, Any]) -> list[str | Cell]:
    note = row.get("problem") or ("" if row["found"] else row.get("install") or "")
    return [
        Cell(row["name"], "bold"),
        Cell("yes", "green") if row["found"] else Cell("no", "red"),
        row.get("version") or "-",
        row.get("api") or "-",
        safe(str(note)),
    ]
