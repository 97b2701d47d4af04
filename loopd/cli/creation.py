"""`loopctl new`: a session from options, from a file, or from both."""

from __future__ import annotations

import os

from loopd.cli.agents import acp_fields
from loopd.cli.chat_options import milli, servers
from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from loopd.cli.run import Run


def new(run: Run) -> None:
    """Creates a session. Prints JSON in every format: scripts want the id."""
    answer = run.link.change({"t": "session.create", **_session(run.args)})
    run.console.json(answer)


def _session(args: argparse.Namespace) -> dict[str, Any]:
    session, base = _from_file(args.file) if args.file else ({}, ".")
    driver: dict[str, Any] = session.get("driver", {})
    if not isinstance(driver, dict):
        raise Failure("invalid", f"driver in {args.file} is {driver!r}; expected a table", path="$.driver")
    if args.driver and args.driver != driver.get("kind"):
        driver = {"kind": args.driver}
    elif (args.agent or args.agent_command) and not driver:
        driver = {"kind": "acp"}
    for name, value in (
        ("script", args.script),
        ("delay_ms", args.delay),
        ("base_url", args.base_url),
        ("model", args.model),
        ("api_key_env", args.api_key_env),
        ("system", args.system),
        ("max_tokens", args.max_tokens),
        ("context_bytes", args.context_bytes),
        ("seed", args.seed),
        ("once", True if args.once else None),
        ("tools", False if args.no_tools else None),
        ("temperature_milli", milli(args.temperature)),
        ("api", args.api),
        ("context_tokens", args.context_tokens),
        ("mcp_servers", servers(driver, args.mcp)),
        ("proxy", args.proxy),
    ):
        if value is not None:
            driver[name] = value
    if "kind" not in driver:
        raise Failure("usage", "which driver? expected --driver scripted, chat or acp, or -f FILE")
    if driver["kind"] == "acp":
        acp_fields(args, driver, base)
    for name, kind in (("script", "scripted"), ("base_url", "chat"), ("model", "chat")):
        if driver["kind"] == kind and not driver.get(name):
            raise Failure("usage", f"--driver {kind} needs --{name.replace('_', '-')}")
    if "script" in driver:
        driver["script"] = os.path.abspath(os.path.join("." if args.script else base, driver["script"]))
    session["driver"] = driver
    for name in ("name", "goal", "preset", "parent"):
        if getattr(args, name) is not None:
            session[name] = getattr(args, name)
    if args.workspace is not None:
        session["workspace"] = os.path.abspath(args.workspace)
    elif "workspace" in session:
        session["workspace"] = os.path.abspath(os.path.join(base, session["workspace"]))
    if args.label:
        session["labels"] = {**session.get("labels", {}), **dict(args.label)}
    if args.set:
        session["set"] = {**session.get("set", {}), **dict(args.set)}
    if args.budget:
        session["budgets"] = [*session.get("budgets", []), *args.budget]
    if args.policy:  # what is said here comes first
        session["policy"] = [*args.policy, *session.get("policy", [])]
    return session


def _from_file(path: str) -> tuple[dict[str, Any], str]:
    import tomllib

    try:
        with open(path, "rb") as file:
            session = tomllib.load(file)
    except OSError as error:
        raise Failure("not_found", f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Failure("invalid", f"{path} is not TOML: {error}") from None
    if "set" in session:
        session["set"] = _dotted(session["set"], "")
    if isinstance(session.get("budgets"), list):
        session["budgets"] = [_limit(each, path) for each in session["budgets"]]
    return session, os.path.dirname(os.path.abspath(path))


def _limit(given: Any, path: str) -> Any:
    """A limit of a file: `"tokens=2M/5h"`, or a table as the protocol has it."""
    if not isinstance(given, str):
        return given
    import argparse

    from loopd.cli import amounts

    try:
        return amounts.limit(given)
    except argparse.ArgumentTypeError as error:
        raise Failure("invalid", f"budgets in {path}: {error}", path="$.budgets") from None


def _dotted(table: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat.update(_dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat
