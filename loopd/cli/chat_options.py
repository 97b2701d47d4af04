"""Options of `loopctl new --driver chat`, and what of them takes more than a copy."""

from __future__ import annotations

import argparse

from loopd.cli import arguments as arg
from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    chat = parser.add_argument_group("--driver chat")
    chat.add_argument(
        "--base-url", metavar="URL", help="model endpoint, for example http://127.0.0.1:8080/v1"
    )
    chat.add_argument("--model", metavar="NAME", help="model name")
    chat.add_argument(
        "--api",
        choices=("chat-completions", "messages", "responses"),
        help="how the endpoint is spoken to (default: chat-completions)",
    )
    chat.add_argument(
        "--api-key-env", metavar="VAR", help="variable in the daemon's environment that holds the key"
    )
    chat.add_argument("--system", metavar="TEXT", help="system prompt")
    chat.add_argument("--temperature", type=float, metavar="T", help="sampling temperature, 0 to 5")
    chat.add_argument("--max-tokens", type=arg.count, metavar="N", help="longest answer of one step")
    chat.add_argument(
        "--context-bytes", type=arg.count, metavar="N", help="most bytes of history in one request"
    )
    chat.add_argument("--seed", type=arg.seq, metavar="N", help="sampling seed")
    chat.add_argument("--no-tools", action="store_true", help="offer the model no tools")
    chat.add_argument(
        "--mcp",
        action="append",
        metavar="NAME=COMMAND",
        help="offer the tools of an MCP server (stdio), or of NAME=URL; repeatable",
    )
    chat.add_argument(
        "--proxy",
        action=argparse.BooleanOptionalAction,
        help="let model calls go through the daemon's proxy, which records their bytes (default: of hosted agents)",
    )


def servers(driver: dict[str, Any], named: list[str] | None) -> list[dict[str, Any]] | None:
    """MCP servers of `--mcp NAME=COMMAND`, behind those of the file.

    Raises:
        Failure: one has no name or no command.
    """
    if not named:
        return None
    import shlex

    found = list(driver.get("mcp_servers", []))
    for each in named:
        name, equals, what = each.partition("=")
        if not equals or not what.strip():
            raise Failure("usage", f"--mcp {each!r}; expected NAME=COMMAND or NAME=URL")
        if what.startswith(("http://", "https://")):
            found.append({"name": name, "url": what})
            continue
        try:
            command, *args = shlex.split(what)
        except ValueError as error:
            raise Failure("usage", f"--mcp {each!r}: {error}") from None
        found.append({"name": name, "command": command, "args": args})
    return found


def milli(temperature: float | None) -> int | None:
    """`--temperature` in thousandths."""
    if temperature is None:
        return None
    if not 0 <= temperature <= 5:  # also refuses nan
        raise Failure("usage", f"--temperature {temperature}; expected 0 to 5")
    return round(temperature * 1_000)
