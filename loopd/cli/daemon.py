"""`loopd`: runs the daemon, the demonstration, and what needs no daemon."""

from __future__ import annotations

import argparse
import os
import sys

from loopd.cli.arguments import FILE_COMPLETION, FOLDER_COMPLETION, complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopd.config import Config

EPILOG = """\
examples:
  loopd demo                                  watch a degenerating agent being caught
  loopd serve --data ./state                  host sessions; loopctl --socket ./state/control.sock
  loopd serve --data /var/lib/loopd --config /etc/loopd/loopd.toml --http 127.0.0.1:9464
  loopd config check /etc/loopd/loopd.toml    say what is wrong with it
  loopd schema > loopd.schema.json            the protocol as JSON Schema
"""
DATA_DEFAULTS = "$LOOPD_DATA, else $STATE_DIRECTORY, else $XDG_STATE_HOME/loopd or ~/.local/state/loopd"


def whole_parser() -> argparse.ArgumentParser:
    """The parser of `loopd`."""
    parser = argparse.ArgumentParser(
        prog="loopd",
        description="A daemon that keeps unattended agents honest.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND")

    def verb(name: str, does: str, *examples: str) -> argparse.ArgumentParser:
        return _verb(verbs, name, does, *examples)

    serve = verb(
        "serve",
        "host sessions in the foreground",
        "loopd serve --data ./state",
        "loopd serve --data /var/lib/loopd --config /etc/loopd/loopd.toml --http 127.0.0.1:9464",
        "LOOPD_LOG_LEVEL=warning loopd serve --log-format text",
    )
    _settings(serve)
    demo = verb(
        "demo", "show on a real daemon how degeneration is caught", "loopd demo", "loopd demo --keep ./demo"
    )
    demo.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    verb("mcp", "loopd's own tools for a hosted agent, as an MCP server (agents start it)", "loopd mcp")
    schema = verb(
        "schema",
        "print the protocol as JSON Schema",
        "loopd schema > loopd.schema.json",
        "loopd schema --digest",
    )
    schema.add_argument("--digest", action="store_true", help="only its digest, as in `welcome`")
    config = verb(
        "config",
        "check a configuration",
        "loopd config check /etc/loopd/loopd.toml",
        "loopd config show --config loopd.toml",
    )
    actions = config.add_subparsers(dest="action", metavar="COMMAND", required=True)
    check = _verb(
        actions,
        "check",
        "name every mistake; exit code 2 if there is one",
        "loopd config check /etc/loopd/loopd.toml",
        "LOOPD_LIMITS_CONCURRENT_TURNS=4 loopd config check",
    )
    file = check.add_argument(
        "file", nargs="?", metavar="FILE", help="TOML file (default: only the environment)"
    )
    complete(file, **FILE_COMPLETION)
    show = _verb(
        actions,
        "show",
        "print the settings in force as JSON",
        "loopd config show",
        "loopd config show --config loopd.toml --data ./state | jq .limits",
    )
    _settings(show)
    return parser


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str, *examples: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=does,
        description=does[:1].upper() + does[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _settings(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument(
        "--data", metavar="DIR", help=f"folder of the journal (default: {DATA_DEFAULTS})"
    )
    complete(data, **FOLDER_COMPLETION)
    file = parser.add_argument("--config", metavar="FILE", help="TOML file (default: $LOOPD_CONFIG)")
    complete(file, **FILE_COMPLETION)
    socket = parser.add_argument(
        "--socket", metavar="PATH", help="control socket (default: DATA/control.sock)"
    )
    complete(socket, **FILE_COMPLETION)
    parser.add_argument("--http", metavar="HOST:PORT", help="serve /metrics, /livez, /readyz here")
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="least severity on stderr"
    )
    parser.add_argument("--log-format", choices=("json", "text"), help="default: json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["demo"]:  # it has a parser of its own, and help
        return _demo(words[1:])
    parser = whole_parser()
    args = parser.parse_args(words)
    if args.version:
        from loopd import __version__

        sys.stdout.write(f"loopd {__version__}\n")
        return 0
    if args.verb is None:
        parser.print_help(sys.stderr)
        return 2
    if args.verb == "demo":
        return _demo(args.arguments)
    if args.verb == "mcp":
        return _mcp()
    if args.verb == "schema":
        return _schema(digest_only=args.digest)
    return _with_config(args)


def _demo(words: list[str]) -> int:
    from loopd.demo import main as demo

    return int(demo(words) or 0)


def _mcp() -> int:
    from loopd.cli.mcp import main as mcp

    return mcp()


def _schema(*, digest_only: bool) -> int:
    from loopd_protocol import schema

    if digest_only:
        sys.stdout.write(schema.digest() + "\n")
        return 0
    return schema.main([])


def _with_config(args: argparse.Namespace) -> int:
    from loopd.config import ConfigRefused
    from loopd_protocol.errors import Refused

    try:
        if args.verb == "config" and args.action == "check":
            return _check(args.file)
        config = configured(args)
        if args.verb == "config":
            return _show(config)
        return _serve(config)
    except ConfigRefused as refused:
        for problem in refused.problems:
            sys.stderr.write(f"loopd: {problem}\n")
        return 2
    except Refused as refused:
        sys.stderr.write(f"loopd: {refused.code}: {refused.message}\n")
        return refused.row.exit
    except KeyboardInterrupt:
        return 130


def _check(path: str | None) -> int:
    from loopd.config import load

    load(path)
    sys.stdout.write(f"{path or 'the environment'} is fine\n")
    return 0


def _show(config: Config) -> int:
    import msgspec

    everything = msgspec.structs.asdict(config)
    sys.stdout.write(
        msgspec.json.format(
            msgspec.json.encode(
                {
                    name: msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
                    for name, value in everything.items()
                }
            )
        ).decode()
        + "\n"
    )
    return 0


def configured(args: argparse.Namespace) -> Config:
    """Flags over environment over file over defaults."""
    from loopd.config import load

    config = load(
        args.config or os.environ.get("LOOPD_CONFIG"),
        flags={
            "data": args.data,
            "socket": args.socket,
            "http.listen": args.http,
            "log.level": args.log_level,
            "log.format": args.log_format,
        },
    )
    if config.data is not None:
        return config
    import msgspec

    return msgspec.structs.replace(config, data=default_data())


def default_data() -> str:
    """Where the journal goes when nobody says: systemd's state folder or the user's."""
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return given.split(":")[0]
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "loopd")


def _serve(config: Config) -> int:
    from loopd.daemon import run
    from loopd.telemetry import configure_logs

    configure_logs(level=config.log.level, style=config.log.format)
    run(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
