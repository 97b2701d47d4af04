"""How arguments are read, and those that several verbs share."""

from __future__ import annotations

import argparse

from loopd.cli import instants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = ("table", "json", "ndjson")
HOLDS = (
    "UserSuspend",
    "Degeneration",
    "RequestIdle",
    "ContinuationBackoff",
    "Interrupted",
    "ProviderBackoff",
    "AwaitingApproval",
    "Budget",
    "CrashLoop",
    "Maintenance",
)
"""Equal to the protocol's `HOLD_KINDS` (a test says so); importing that costs 30 ms of CPU."""


# -- argument types ---------------------------------------------------------------------------


def typed(parse: Callable[[str], int]) -> Callable[[str], int]:
    """A parser's `ValueError` as argparse's own error."""

    def checked(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


duration = typed(instants.duration_ms)
moment = typed(lambda text: instants.moment_ms(text, instants.now_ms()))
past = typed(lambda text: instants.past_ms(text, instants.now_ms()))


def count(text: str) -> int:
    """A positive integer."""
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no count; expected a whole number from 1")
    return int(text)


def seq(text: str) -> int:
    """A log position; 0 is the beginning."""
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise argparse.ArgumentTypeError(f"{text!r} is no sequence number; expected 0, 1, 2, …")
    return int(text)


def label(text: str) -> tuple[str, str]:
    """`KEY=VALUE`; `KEY` alone has an empty value."""
    key, _, value = text.partition("=")
    if not key:
        raise argparse.ArgumentTypeError(f"{text!r} is no label; expected KEY=VALUE")
    return key, value


def setting(text: str) -> tuple[str, object]:
    """`dotted.key=VALUE`; the value is JSON if it can be read as such, else text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no setting; expected KEY=VALUE")
    import json

    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def hold(text: str) -> str:
    """A kind of hold, whatever its case."""
    for kind in HOLDS:
        if kind.lower() == text.lower().replace("-", "").replace("_", ""):
            return kind
    raise argparse.ArgumentTypeError(f"{text!r} is no kind of hold; expected one of {', '.join(HOLDS)}")


# -- arguments that several verbs share --------------------------------------------------------


def common(parser: argparse.ArgumentParser) -> None:
    """Options of every verb, accepted before and after it."""
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "-o", "--output", choices=FORMATS, default="table", help="what to print (default: table)"
    )
    socket = group.add_argument(
        "--socket",
        metavar="PATH",
        help="control socket (default: $LOOPD_SOCKET, else $XDG_RUNTIME_DIR/loopd/control.sock, "
        "else /run/loopd/control.sock)",
    )
    complete(socket, **FILE_COMPLETION)
    group.add_argument(
        "--url",
        metavar="URL",
        help="talk HTTP instead: http://HOST:PORT (default: $LOOPD_URL, unless --socket is given)",
    )
    token = group.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with a token (default: $LOOPD_TOKEN_FILE; or the token in $LOOPD_TOKEN)",
    )
    complete(token, **FILE_COMPLETION)
    group.add_argument(
        "--timeout", type=duration, metavar="DUR", help="how long to wait for an answer (default: 30s)"
    )
    group.add_argument(
        "--key", metavar="KEY", help="for changes: the same change with the same key is carried out once"
    )


def complete(action: argparse.Action, **how: str) -> None:
    """Say what shtab completes this argument with."""
    action.complete = how  # type: ignore[attr-defined]  # read by shtab


FILE_COMPLETION = {
    "bash": "_shtab_compgen_files",
    "zsh": "_files",
    "fish": "(__fish_complete_path (commandline -ct))",
    "powershell": "_shtab_powershell_compgen_files",
}
FOLDER_COMPLETION = {
    "bash": "_shtab_compgen_dirs",
    "zsh": "_files -/",
    "fish": "(__fish_complete_directories (commandline -ct))",
    "powershell": "_shtab_powershell_compgen_dirs",
}
SESSION_COMPLETION = {
    "bash": "_loopctl_sessions",
    "zsh": "_loopctl_sessions",
    "fish": "(__loopctl_sessions)",
}


def sid(
    parser: argparse.ArgumentParser,
    nargs: str | None = None,
    meaning: str = "id or name of a session",
    name: str = "",
) -> None:
    """The session argument."""
    action = parser.add_argument("sid", metavar=name or "SID", nargs=nargs, help=meaning)
    complete(action, **SESSION_COMPLETION)


def selection(
    parser: argparse.ArgumentParser, *, ended: bool = False, behind: tuple[str, str] = ("", "")
) -> None:
    """Sessions by id, label or all of them.

    Args:
        parser: of a verb that `loopd.cli.selection` carries out.
        ended: sessions that have ended as well, not only live ones.
        behind: name and meaning of other words that stand behind the sessions, if the verb tells them apart.
    """
    name, meaning = behind
    sid(parser, "*", f"ids or names of sessions{', then ' * bool(name)}{meaning}", name and f"SID|{name}")
    group = parser.add_argument_group("which sessions")
    group.add_argument(
        "-l",
        "--label",
        type=label,
        action="append",
        default=[],
        metavar="K=V",
        help="those with this label; repeatable: all must fit",
    )
    group.add_argument("--all", action="store_true", help=f"every {'' if ended else 'live '}session")
    group.add_argument("--dry-run", action="store_true", help="only name the sessions that it would touch")
    parser.set_defaults(ended=ended)


def reason(parser: argparse.ArgumentParser) -> None:
    """Why an operator does it."""
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; goes into the log and into `why`")


def limit(parser: argparse.ArgumentParser, default: int, what: str) -> None:
    """How many records."""
    parser.add_argument(
        "-n",
        "--lines",
        dest="limit",
        type=count,
        default=default,
        metavar="N",
        help=f"{what} (default: {default})",
    )


def nothing(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""
