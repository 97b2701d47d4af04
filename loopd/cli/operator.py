"""`loopctl`: finds the verb, builds that verb's parser alone, carries it out, translates faults."""

from __future__ import annotations

import argparse
import os
import sys

from loopd.cli.arguments import FORMATS, common
from loopd.cli.console import Console, safe, terminal_width
from loopd.cli.exits import USAGE, Failure
from loopd.cli.link import Link, address
from loopd.cli.run import Run
from loopd.cli.verbs import DEFAULT_MEMBERS, GROUPS, VERBS, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

DESCRIPTION = "Operate a loopd daemon: see what its sessions do, stop them safely, find out why."
EPILOG = """\
start here:
  loopctl status                    is the daemon well?
  loopctl ps --sort stagnation      which session needs me?
  loopctl why SID                   why is it not running, and until when?
  loopctl suspend SID               stop it, with proof; `unsuspend` lifts it

exit codes:
  0 ok   1 check failed   2 usage   3 not found   4 conflict or gate closed
  5 unauthorised   6 unavailable   7 uncertain
"""
PATIENCE_S = 30.0
_HIDDEN = "\0"
"""Never in a word of a command line."""
_WITH_VALUE = {"-o", "--output", "--socket", "--timeout", "--key", "--url", "--token-file"}


class Help(argparse.RawDescriptionHelpFormatter):
    """Knows the width by itself: argparse would import shutil with bz2 and lzma, 10 ms, to ask."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(terminal_width(), 110) - 2)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of printing the usage; options stand anywhere between words."""

    def parse_args(self, args: Sequence[str], namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse as argparse would, but let the words of several arguments be apart from each other."""
        words = list(args)
        if "--" in words:
            # argparse would forget it between its two passes: hide the dashes behind it instead
            cut = words.index("--")
            words[cut:] = [_HIDDEN + word if word.startswith("-") else word for word in words[cut + 1 :]]
        found = self.parse_intermixed_args(words, namespace)
        for name, value in vars(found).items():
            if isinstance(value, str):
                setattr(found, name, value.removeprefix(_HIDDEN))
            elif isinstance(value, list):
                plain = [each.removeprefix(_HIDDEN) if isinstance(each, str) else each for each in value]
                setattr(found, name, plain)
        return found

    def error(self, message: str) -> NoReturn:
        """Report a usage error, exit code 2."""
        raise Failure("usage", message, hint=f"try `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A name in any script must not end the program on a terminal in the C locale.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    link: Link | None = None
    try:
        name, rest = find_verb(words)
        verb = VERBS[name]
        args = leaf_parser(name, verb).parse_args(rest)
        patience_s = PATIENCE_S if args.timeout is None else max(args.timeout, 1) / 1_000
        link = Link(*address(args), patience_s, args.key)
        run = Run(name, args, Console(args.output), link)
        module, _, function = verb.runs.partition(":")
        code = int(getattr(_import(f"loopd.cli.{module}"), function)(run) or 0)
        sys.stdout.flush()
    except Failure as failure:
        return report(failure, as_json=_asked_for_json(words))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # The outer wall: an answer of another shape, for example of a newer daemon. The command itself
        # may have been carried out, so this is uncertain; LOOPD_DEBUG shows where it happened.
        if os.environ.get("LOOPD_DEBUG"):
            raise
        return report(
            Failure("uncertain", f"the answer cannot be shown: {error!r}"), as_json=_asked_for_json(words)
        )
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Keep the interpreter's last flush quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    finally:
        if link is not None:
            link.close()
    return code


def find_verb(words: list[str]) -> tuple[str, list[str]]:
    """Split a command line into the verb's full name and all other words, in order.

    Raises:
        Failure: no such verb.
        SystemExit: help or version was asked for, or there is no verb at all.
    """
    place = _next_word(words, 0)
    if place is None:
        if any(word in {"-V", "--version"} for word in words):
            from loopd import __version__

            sys.stdout.write(f"loopctl {__version__}\n")
            raise SystemExit(0)
        asked = any(word in {"-h", "--help"} for word in words)
        (sys.stdout if asked else sys.stderr).write(overview())
        raise SystemExit(0 if asked else USAGE)
    name, rest = words[place], words[:place] + words[place + 1 :]
    if name == "help":
        target = [word for word in rest if not word.startswith("-")]
        return find_verb([*target, "--help"])
    if name in GROUPS:
        return _member(name, rest, place)
    if name not in VERBS:
        raise Failure("usage", f"unknown command {safe(name)!r}{_nearest(name)}", hint="try `loopctl --help`")
    return name, rest


def _member(group: str, rest: list[str], start: int) -> tuple[str, list[str]]:
    members = [name.partition(" ")[2] for name in VERBS if name.startswith(f"{group} ")]
    place = _next_word(rest, start)
    if place is not None and rest[place] in members:
        return f"{group} {rest[place]}", rest[:place] + rest[place + 1 :]
    second = "" if place is None else "".join(rest[place + 1 : place + 2])
    if place is not None and second in members:  # `gate SID open` reads well too
        return f"{group} {second}", rest[: place + 1] + rest[place + 2 :]
    if place is None and any(word in {"-h", "--help"} for word in rest):
        sys.stdout.write(overview(group))
        raise SystemExit(0)
    if group in DEFAULT_MEMBERS and (place is not None or group not in {"gate", "inbox"}):  # of one session
        return f"{group} {DEFAULT_MEMBERS[group]}", rest
    raise Failure(
        "usage",
        f"`loopctl {group}` needs one of {', '.join(members)}",
        hint=f"try `loopctl {group} --help`",
    )


def _next_word(words: list[str], start: int) -> int | None:
    place = start
    while place < len(words):
        word = words[place]
        if word == "--":
            return None
        if word in _WITH_VALUE:
            place += 2
        elif word.startswith("-") and word != "-":
            place += 1
        else:
            return place
    return None


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    words = {verb.partition(" ")[0] for verb in VERBS} | set(VERBS)
    close = get_close_matches(name, sorted(words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _asked_for_json(words: list[str]) -> bool:
    for place, word in enumerate(words):
        value = words[place + 1] if word in {"-o", "--output"} and place + 1 < len(words) else ""
        if word.startswith("--output="):
            value = word.partition("=")[2]
        elif word.startswith("-o") and len(word) > 2:
            value = word[2:]
        if value in {"json", "ndjson"}:
            return True
    return False


def leaf_parser(name: str, verb: Verb) -> Parser:
    """The parser of one verb with the options that go everywhere."""
    parser = Parser(
        prog=f"loopctl {name}",
        description=verb.summary[:1].upper() + verb.summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {line}" for line in verb.examples),
        formatter_class=Help,
        allow_abbrev=False,
    )
    verb.configure(parser)
    common(parser)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """The parser of all verbs, for shell completion and the reference."""
    parser = argparse.ArgumentParser(prog="loopctl", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("-o", "--output", choices=FORMATS)
    parser.add_argument("--socket", metavar="PATH")
    parser.add_argument("--url", metavar="URL")
    parser.add_argument("-V", "--version", action="store_true")
    top = parser.add_subparsers(metavar="COMMAND")
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for name, verb in VERBS.items():
        group, _, member = name.partition(" ")
        holder = top
        if member:
            if group not in groups:
                made = top.add_parser(group, help=GROUPS[group])
                groups[group] = made.add_subparsers(metavar="COMMAND")
            holder = groups[group]
        leaf = holder.add_parser(member or name, help=verb.summary)
        verb.configure(leaf)
        common(leaf)
    return parser


def overview(group: str = "") -> str:
    """The help of `loopctl` or of one group of verbs."""
    chosen = {name: verb for name, verb in VERBS.items() if not group or name.startswith(f"{group} ")}
    width = max(map(len, chosen))
    lines = [
        f"usage: loopctl {group + ' ' if group else ''}COMMAND [options]",
        "",
        DESCRIPTION,
        "",
        "commands:",
    ]
    lines += [f"  {name:{width}}  {verb.summary}" for name, verb in chosen.items()]
    lines += ["", "`loopctl COMMAND --help` shows arguments and examples.", "", EPILOG]
    return "\n".join(lines)


def report(failure: Failure, *, as_json: bool) -> int:
    """Print a failure on stderr: one line for people, one object for programs. Its exit code."""
    if as_json:
        import json

        sys.stderr.write(json.dumps(failure.as_json()) + "\n")
        return failure.exit
    shown = failure.path if failure.code in {"invalid", "unknown_field"} else None
    where = f" at {shown}" if shown and shown not in failure.message else ""
    again = "" if failure.retry_after_ms is None else f"; try again in {failure.retry_after_ms} ms"
    hint = f" ({failure.hint})" if failure.hint else ""
    line = f"loopctl: {failure.code}: {safe(failure.message)}{safe(where)}{again}{hint}"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        line = f"\x1b[31m{line}\x1b[0m"
    sys.stderr.write(line + "\n")
    return failure.exit


def _import(name: str) -> object:
    __import__(name)
    return sys.modules[name]


if __name__ == "__main__":
    sys.exit(main())
