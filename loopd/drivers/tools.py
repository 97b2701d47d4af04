"""The tools that a chat model is offered, and how each call is carried out.

Every call ends in a `ToolCall` with a result for the model: unknown tools and bad arguments are
results with `error_class` `schema`, refusals `denied`, failures of a tool `tool`. Which calls of one
answer run at the same time is up to `loopd.drivers.batch`.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec

from loopd.core.conversation import AgentRequest
from loopd.core.tools import tool_class
from loopd.drivers.chat_settings import ChatSettings
from loopd.drivers.fingerprint import WorkspaceSensor
from loopd.drivers.host import OWN_TOOLS, TurnHost
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import KEEP_BYTES, environment, run_shell
from loopd.drivers.tool_schemas import (
    FILE_SCHEMAS,
    OWN_SCHEMAS,
    EditArgs,
    ReadArgs,
    ShellArgs,
    WriteArgs,
    shell_schema,
)
from loopd.drivers.workspace import Denied, Failed, Workspace
from loopd_protocol.errors import Refused
from loopd_protocol.events import ToolCall

P = ParamSpec("P")
T = TypeVar("T")

RESULT_CHARS = 2 * KEEP_BYTES
"""A longer result is cut in the middle before it goes back to the model; digests are of the whole."""
BESIDE = frozenset({"shell", "read_file"})
"""Tools of which several calls run at the same time when they are asked for in a row."""


class ForeignResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool of somebody else gave; `sha256` and `size` are of the whole, `text` may be cut.

    `unknown`: it was asked, and nobody knows what it did.
    """

    ok: bool
    text: str
    sha256: str
    size: int
    error_class: str | None = None
    unknown: bool = False


class ForeignTools(Protocol):
    """Tools that are not loopd's own."""

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """As they are offered now, in the form of chat-completions."""

    def has(self, name: str) -> bool:
        """Whether a tool is one of these."""

    async def call(self, name: str, args: dict[str, Any]) -> ForeignResult:
        """Carry out a call; what goes wrong is in the result."""


class _Result(msgspec.Struct, kw_only=True):
    """What a tool gave: its whole output for the digest, and the text for the model when that differs."""

    ok: bool
    text: str
    sha256: str | None = None
    size: int | None = None
    exit_code: int | None = None
    error_class: str | None = None
    ends_turn: bool = False
    unknown: bool = False


class Toolbox:
    """The tools of one session.

    Args:
        sid: session; commands find it in their environment.
        workspace: directory for files and shell, or None: then those tools do not exist.
        shell_env: the environment that commands inherit from; only an allow-list of it gets through.
        run_as: the user that commands run as and that files are opened as; None: the daemon's own.
        settings: times and sizes.
        mcp: tools of the session's MCP servers; which they are may change between turns.
        boot_mark: environment by which the next boot finds what this one left running.
    """

    def __init__(
        self,
        sid: str,
        workspace: str | None,
        *,
        shell_env: Mapping[str, str] | None = None,
        run_as: RunAs | None = None,
        settings: ChatSettings | None = None,
        mcp: ForeignTools | None = None,
        boot_mark: Mapping[str, str] | None = None,
    ) -> None:
        self._run_as = run_as
        self._settings = settings or ChatSettings()
        self._mcp = mcp
        self.workspace = Workspace(workspace) if workspace is not None else None
        self.sensor = (
            WorkspaceSensor(self.workspace.root, run_as=run_as) if self.workspace is not None else None
        )
        self._schemas = OWN_SCHEMAS
        if self.workspace is not None:
            self._schemas += (shell_schema(self._settings.tool_timeout_s), *FILE_SCHEMAS)
        inherited = environment(sid, os.environ if shell_env is None else shell_env)
        self._env = {**inherited, **(boot_mark or {})}

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """All tools, in the form of chat-completions."""
        return self._schemas if self._mcp is None else self._schemas + self._mcp.schemas

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(str(schema["function"]["name"]) for schema in self.schemas)

    def lane(self, name: str) -> str | None:
        """Calls that follow one another in the same lane may run at the same time; None: it runs alone."""
        if self._mcp is not None and self._mcp.has(name):
            return "mcp"
        return name if name in BESIDE else None

    async def fingerprint(self) -> str | None:
        """State fingerprint of the workspace, None for unknown or no workspace."""
        return await self.sensor.read() if self.sensor is not None else None

    async def run(self, call: ToolCall, host: TurnHost) -> tuple[ToolCall, bool]:
        """Carry out one call; returns it with its result, and whether it ends the turn."""
        call = msgspec.structs.replace(call, tool_class=tool_class(call.name, call.args))
        if call.name not in self.names:
            known = ", ".join(self.names)
            return self._done(call, _schema(f"there is no tool {call.name!r}; the tools are: {known}")), False
        if not isinstance(call.args, dict) or set(call.args) == {"_raw"}:
            return self._done(
                call, _schema(f"the arguments of {call.name} are no JSON object; expected one")
            ), False
        if call.name in OWN_TOOLS:
            result = await _ask(call, host)
            return self._done(call, result), result.ends_turn
        if self._mcp is not None and self._mcp.has(call.name):
            foreign = functools.partial(self._foreign, self._mcp, call.name)
            # Nobody can stop it: what was asked for may still happen.
            return self._done(
                call, await self._effect(call, host, foreign, call.args, cut="uncertain")
            ), False
        runner, shape = self._runners()[call.name]
        try:
            args = msgspec.convert(call.args, shape, strict=False)
        except msgspec.ValidationError as error:
            return self._done(call, _schema(f"arguments of {call.name}: {error}")), False
        if shape is ReadArgs:
            return self._done(call, await self._permitted(call, host, runner, args)), False
        # The same content at the same place: after a crash this is no question for a person.
        begun = msgspec.structs.replace(call, repeatable=shape is WriteArgs)
        return self._done(call, await self._effect(begun, host, runner, args)), False

    def _done(self, call: ToolCall, result: _Result) -> ToolCall:
        return _done(call, result, self._settings.tool_result_chars)

    @staticmethod
    async def _foreign(mcp: ForeignTools, name: str, args: dict[str, Any]) -> _Result:
        result = await mcp.call(name, args)
        return _Result(
            ok=result.ok,
            text=result.text,
            sha256=result.sha256,
            size=result.size,
            error_class=result.error_class,
            unknown=result.unknown,
        )

    def _runners(self) -> dict[str, tuple[Callable[[Any], Awaitable[_Result]], type[msgspec.Struct]]]:
        return {
            "shell": (self._shell, ShellArgs),
            "read_file": (self._read, ReadArgs),
            "write_file": (self._write, WriteArgs),
            "edit_file": (self._edit, EditArgs),
        }

    @staticmethod
    async def _permitted(
        call: ToolCall, host: TurnHost, runner: Callable[[Any], Awaitable[_Result]], args: Any
    ) -> _Result:
        """Run what has no effect outside, if policy lets it."""
        try:
            await host.permit(call)
        except Refused as error:
            return _Result(ok=False, text=f"denied: {error.message}", error_class="denied")
        return await _guarded(runner, args)

    async def _effect(
        self,
        call: ToolCall,
        host: TurnHost,
        runner: Callable[[Any], Awaitable[_Result]],
        args: Any,
        *,
        cut: str = "cancelled",
    ) -> _Result:
        try:
            await host.permit(call)  # may wait for a person, so a cancellation must reach it
            # Shielded: else a cancellation could leave an intent of which nobody knows how it ended.
            with anyio.CancelScope(shield=True):
                await host.intent(call)
        except Refused as error:
            return _Result(ok=False, text=f"denied: {error.message}", error_class="denied")
        outcome = cut
        try:
            result = await _guarded(runner, args)
            outcome = "uncertain" if result.unknown else "ok" if result.ok else "error"
        finally:
            # Also when this turn is being cancelled: the tool has ended, and that must be known.
            with anyio.CancelScope(shield=True):
                await host.outcome(call, outcome)
        return result

    async def _shell(self, args: ShellArgs) -> _Result:
        assert self.workspace is not None
        assert self.sensor is not None
        self.sensor.ran_shell()
        timeout_s = args.timeout_secs or self._settings.tool_timeout_s
        ran = await run_shell(
            args.command,
            cwd=os.fspath(self.workspace.root),
            env=self._env,
            timeout_s=timeout_s,
            run_as=self._run_as,
        )
        text = (ran.head + _gap(ran.size - len(ran.head) - len(ran.tail)) + ran.tail).decode(
            "utf-8", "replace"
        )
        if ran.ended == "timeout":
            note = f"[ended after {timeout_s} s; it had not finished]"
        elif ran.ended == "output":
            note = f"[ended: more than {ran.size} bytes of output]"
        else:
            note = f"[exit code {ran.exit_code}]"
        return _Result(
            ok=ran.exit_code == 0,
            text=f"{text}\n{note}" if text else note,
            sha256=ran.sha256,
            size=ran.size,
            exit_code=ran.exit_code,
            error_class=None if ran.exit_code == 0 else "tool",
        )

    async def _read(self, args: ReadArgs) -> _Result:
        assert self.workspace is not None
        data = await self._in_thread(self.workspace.read, args.path)
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        shown = "".join(lines[args.offset - 1 : args.offset - 1 + args.limit])
        if args.offset > 1 and args.offset > len(lines):
            raise Failed(f"{args.path!r} has {len(lines)} lines; expected an offset within them")
        return _Result(ok=True, text=shown)

    async def _write(self, args: WriteArgs) -> _Result:
        assert self.workspace is not None
        data = args.content.encode("utf-8", "surrogatepass")
        await self._put(args.path, data)
        return _Result(ok=True, text=f"wrote {len(data)} bytes to {args.path}")

    async def _edit(self, args: EditArgs) -> _Result:
        assert self.workspace is not None
        data = await self._in_thread(self.workspace.read, args.path)
        old, new = args.old.encode("utf-8", "surrogatepass"), args.new.encode("utf-8", "surrogatepass")
        count = data.count(old)
        if count == 0:
            raise Failed(
                f"the text to replace does not occur in {args.path!r}; expected it as it stands there"
            )
        if count > 1 and not args.replace_all:
            raise Failed(
                f"the text to replace occurs {count} times in {args.path!r}; expected once, or replace_all"
            )
        await self._put(args.path, data.replace(old, new))
        return _Result(ok=True, text=f"replaced {count} occurrence{'s' if count > 1 else ''} in {args.path}")

    async def _put(self, path: str, data: bytes) -> None:
        assert self.workspace is not None
        assert self.sensor is not None
        self.sensor.wrote(await self._in_thread(self.workspace.write, path, data))

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work on files in a thread, with the rights of the user that agents run as."""
        bound = functools.partial(work, *args, **kwargs)
        if self._run_as is not None:
            bound = functools.partial(self._run_as.within, bound)
        return await anyio.to_thread.run_sync(bound)


def denied(call: ToolCall, text: str) -> ToolCall:
    """The call with a result that says why it did not run."""
    call = msgspec.structs.replace(call, tool_class=tool_class(call.name, call.args))
    return _done(call, _Result(ok=False, text=text, error_class="denied"), RESULT_CHARS)


async def _ask(call: ToolCall, host: TurnHost) -> _Result:
    try:
        reply = await host.ask(AgentRequest(name=call.name, args=call.args))
    except Refused as error:
        return _Result(ok=False, text=error.message, error_class="denied")
    return _Result(
        ok=reply.ok, text=reply.text, error_class=None if reply.ok else "tool", ends_turn=reply.ends_turn
    )


async def _guarded(runner: Callable[[Any], Awaitable[_Result]], args: Any) -> _Result:
    try:
        return await runner(args)
    except Denied as error:
        return _Result(ok=False, text=f"denied: {error}", error_class="denied")
    except Failed as error:
        return _Result(ok=False, text=f"error: {error}", error_class="tool")
    except (OSError, ValueError) as error:  # the shell cannot start; a NUL byte in a command
        return _Result(ok=False, text=f"error: {error}", error_class="infra")


def _schema(text: str) -> _Result:
    return _Result(ok=False, text=f"error: {text}", error_class="schema")


def _gap(size: int) -> bytes:
    return b"\n[... %d bytes left out ...]\n" % size if size > 0 else b""


def _done(call: ToolCall, result: _Result, result_chars: int) -> ToolCall:
    sha256, size = result.sha256, result.size
    if sha256 is None:
        data = result.text.encode("utf-8", "surrogatepass")
        sha256, size = hashlib.sha256(data).hexdigest(), len(data)
    return msgspec.structs.replace(
        call,
        ok=result.ok,
        result=_cut(result.text, result_chars),
        result_sha256=sha256,
        result_bytes=size,
        exit_code=result.exit_code,
        error_class=result.error_class,
    )


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars + 200:
        return text
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
