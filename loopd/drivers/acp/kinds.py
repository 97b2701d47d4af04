"""Kinds of agents: what is known of goose, kimi-code and the others, one TOML file each.

Files that ship with loopd are in `agents/`; a user's own are in the folder `agents` of the
configuration folder, or named by path. A user's file wins over one that ships under the same name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.errors import Refused

SHIPPED = Path(__file__).parent / "agents"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
FILE_BYTES = 256 * 1024
VALUES: tuple[str, ...] = (
    "model", "base_url", "origin", "path", "api_key", "api_key_env", "context_tokens", "home", "workspace",
    "permission",
)  # fmt: skip
"""What `${…}` may stand for: the session's settings, `origin` and `path` of `base_url`, two folders, and
`permission`, which is `ask` for a session with a policy and else `allow`."""

_Word = Annotated[str, Meta(min_length=1, max_length=4_096)]
_EnvName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", max_length=128)]
_Seconds = Annotated[int, Meta(ge=1, le=86_400)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables of the file."""


class Version(_Part, frozen=True, kw_only=True):
    """How to ask for the version, and which one is the oldest that is known to work.

    Attributes:
        args: words behind the program.
        pattern: regular expression whose first group is the version.
        minimum: for example `1.50.0`.
    """

    args: tuple[_Word, ...] = ("--version",)
    pattern: str = r"(\d+\.\d+(?:\.\d+)?)"
    minimum: str = ""


class File(_Part, frozen=True, kw_only=True):
    """A file that the agent reads its settings from, below the session's own home folder.

    Values are put in as the inside of a JSON string, which is one of TOML too.

    Attributes:
        path: relative to the home folder.
        text: its content, with values.
    """

    path: _Word
    text: Annotated[str, Meta(max_length=100_000)]


class Model(_Part, frozen=True, kw_only=True):
    """How `model`, `base_url` and the key of a session reach the agent.

    Attributes:
        api: what the endpoint has to speak.
        required: settings without which the others are refused.
        env: variables; those of an unset optional value are left out.
        args: words behind the command; left out like variables.
        files: written before the agent starts; `own_home` is implied.
        own_home: give the agent a home folder of its own, so that what its user set up does not count.
        key: what is given as key when the session names none; many agents insist on one.
        context_tokens: the window that an agent which insists on one is told when the session names none.
    """

    api: Literal["chat-completions", "messages", "responses", "other"] = "chat-completions"
    required: tuple[Literal["model", "base_url", "api_key", "context_tokens"], ...] = ("model",)
    env: dict[_EnvName, str] = {}
    args: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    own_home: bool = False
    key: str = "none"
    context_tokens: Annotated[int, Meta(ge=0, le=100_000_000)] = 0


class Capabilities(_Part, frozen=True, kw_only=True):
    """What the agent really does, which is not always what it says.

    Attributes:
        resume: how an earlier session is taken up: as the agent offers (`auto`), by one method, or never.
        cancel_reliable: after a cancelled prompt no tool of it runs on; else the agent is ended and
            opened again.
        usage_scope: what reported tokens stand for: the whole prompt (`turn`), its last model call, or
            all of the session so far; `none` when nothing that is reported can be used.
        late_ms: how long after the answer reports may still come.
        exit_codes: regular expression over a tool's output; the first group is its exit code.
    """

    resume: Literal["auto", "resume", "load", "none"] = "auto"
    cancel_reliable: bool = False
    usage_scope: Literal["turn", "last_call", "cumulative", "none"] = "none"
    late_ms: Annotated[int, Meta(ge=0, le=5_000)] = 50
    exit_codes: str = ""


class Asking(_Part, frozen=True, kw_only=True):
    """How the agent is made to ask before its tools run, for a session with a policy.

    Attributes:
        mode: session mode in which it asks; empty for none.
        env: variables that take the place of those in `env`.
    """

    mode: str = ""
    env: dict[_EnvName, str] = {}


class Patience(_Part, frozen=True, kw_only=True):
    """How long the agent may take.

    Attributes:
        start_s: to answer `initialize`, and again to open a session.
        silence_s: without a word while no tool runs.
        tool_silence_s: without a word while a tool runs.
        grace_s: to end a cancelled prompt.
        idle_s: its process is ended after so long without a turn, and started again for the next one.
    """

    start_s: _Seconds = 60
    silence_s: _Seconds = 300
    tool_silence_s: _Seconds = 3_600
    grace_s: _Seconds = 5
    idle_s: _Seconds = 600


class AgentKind(_Part, frozen=True, kw_only=True):
    """One kind of agent.

    Attributes:
        name: as in `--agent NAME`.
        title: for people.
        command: program and words. The program is looked for on the daemon's PATH.
        env: variables that it always gets.
        pass_env: variables of the daemon that it gets too, besides PATH, HOME and the like.
        mode: session mode that needs nobody to answer; empty for the agent's own.
        install: how to get it, in one line.
        version, model, capabilities, asking, patience: tables, see below.
        error_prose: regular expressions; a turn whose text matches one, without a tool call, failed.
        empty_prose: regular expressions; a turn whose only text matches one got an empty answer.
        remarks: regular expressions of what the agent says around an answer, for example about a retry
            that worked; general signs of an error are looked for in what is left.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}\Z")]
    title: str = ""
    command: Annotated[tuple[_Word, ...], Meta(min_length=1, max_length=100)]
    env: dict[_EnvName, str] = {}
    pass_env: tuple[_EnvName, ...] = ()
    mode: str = ""
    install: str = ""
    version: Version = Version()
    model: Model = Model()
    capabilities: Capabilities = Capabilities()
    asking: Asking = Asking()
    patience: Patience = Patience()
    error_prose: tuple[str, ...] = ()
    empty_prose: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def decode(data: bytes, source: str) -> AgentKind:
    """An agent kind from TOML.

    Raises:
        Refused: `invalid`, naming the file and the key.
    """
    try:
        table = tomllib.loads(data.decode())
        kind = msgspec.convert(table, AgentKind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused("invalid", f"{source} is not TOML: {error}", path="$.driver.agent") from error
    except msgspec.ValidationError as error:
        raise Refused("invalid", f"{source}: {error}", path="$.driver.agent") from error
    _check(kind, source)
    return kind


def _check(kind: AgentKind, source: str) -> None:
    patterns = [("version.pattern", kind.version.pattern)]
    patterns += [(f"error_prose[{i}]", text) for i, text in enumerate(kind.error_prose)]
    patterns += [(f"empty_prose[{i}]", text) for i, text in enumerate(kind.empty_prose)]
    patterns += [(f"remarks[{i}]", text) for i, text in enumerate(kind.remarks)]
    if kind.capabilities.exit_codes:
        patterns.append(("capabilities.exit_codes", kind.capabilities.exit_codes))
    for key, text in patterns:
        try:
            compiled = re.compile(text)
        except re.error as error:
            raise _wrong(source, key, f"{text!r} is no regular expression: {error}") from error
        if key in {"version.pattern", "capabilities.exit_codes"} and not compiled.groups:
            raise _wrong(source, key, f"{text!r} has no group; expected one around what is looked for")
    texts = [(f"env.{name}", text) for name, text in kind.env.items()]
    texts += [(f"asking.env.{name}", text) for name, text in kind.asking.env.items()]
    texts += [(f"model.env.{name}", text) for name, text in kind.model.env.items()]
    texts += [(f"model.args[{i}]", text) for i, text in enumerate(kind.model.args)]
    for i, file in enumerate(kind.model.files):
        texts += [(f"model.files[{i}].path", file.path), (f"model.files[{i}].text", file.text)]
        parts = Path(file.path).parts
        if os.path.isabs(file.path) or ".." in parts:
            raise _wrong(source, f"model.files[{i}].path", f"{file.path!r} leads out of the home folder")
    for key, text in texts:
        template = Template(text)
        if not template.is_valid():
            raise _wrong(source, key, "has a `$` that stands for nothing; expected `$$` or `${NAME}`")
        unknown = sorted(set(template.get_identifiers()) - set(VALUES))
        if unknown:
            raise _wrong(source, key, f"names ${{{unknown[0]}}}; expected one of {', '.join(VALUES)}")


def _wrong(source: str, key: str, said: str) -> Refused:
    return Refused("invalid", f"{source}: $.{key} {said}", path="$.driver.agent")


def find(name: str, folder: Path | None = None) -> AgentKind:
    """The kind of that name, or the one that a file at an absolute path describes.

    Args:
        name: a name, or the path of a TOML file.
        folder: the user's own kinds, or None.

    Raises:
        Refused: `not_found` with the names that there are, or `invalid`.
    """
    if os.path.isabs(name):
        return _read(Path(name))
    if NAME.match(name):
        for place in (folder, SHIPPED):
            if place is not None and (place / f"{name}.toml").is_file():
                return _read(place / f"{name}.toml")
    known = ", ".join(names(folder))
    raise Refused(
        "not_found",
        f"no agent kind {name!r}; expected one of {known}, or the absolute path of a TOML file",
        path="$.driver.agent",
    )


def names(folder: Path | None = None) -> list[str]:
    """Names of all kinds: those that ship and the user's own."""
    found = {path.stem for path in SHIPPED.glob("*.toml")}
    if folder is not None and folder.is_dir():
        found |= {path.stem for path in folder.glob("*.toml") if NAME.match(path.stem)}
    return sorted(found)


def plain(command: tuple[str, ...]) -> AgentKind:
    """A kind for an agent of which nothing is known but its command line."""
    return AgentKind(name="command", title=os.path.basename(command[0]), command=command)


def _read(path: Path) -> AgentKind:
    try:
        with open(path, "rb") as stream:
            data = stream.read(FILE_BYTES + 1)
    except OSError as error:
        raise Refused("not_found", f"{path}: {error.strerror}", path="$.driver.agent") from error
    if len(data) > FILE_BYTES:
        raise Refused(
            "invalid",
            f"{path} is larger than {FILE_BYTES} bytes; expected a TOML file",
            path="$.driver.agent",
        )
    return decode(data, str(path))


def filled(text: str, values: Mapping[str, str]) -> str | None:
    """A text with its values put in; None when one of them is not there."""
    template = Template(text)
    if any(name not in values for name in template.get_identifiers()):
        return None
    return template.substitute(values)


def quoted(values: Mapping[str, str]) -> dict[str, str]:
    """The values as the insides of JSON strings."""
    return {name: msgspec.json.encode(value).decode()[1:-1] for name, value in values.items()}


def shown(kind: AgentKind) -> dict[str, Any]:
    """What lists say about a kind."""
    return {
        "name": kind.name,
        "title": kind.title or kind.name,
        "command": list(kind.command),
        "api": kind.model.api,
        "mode": kind.mode,
        "install": kind.install,
        "minimum": kind.version.minimum,
    }
