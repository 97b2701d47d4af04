"""What is started for a session: command, environment, folders and settings files of its agent."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from loopd.drivers.acp import kinds
from loopd.drivers.acp.kinds import AgentKind
from loopd.drivers.proxy.door import Passage, ProxyDoor, Upstream
from loopd.drivers.run_as import RunAs
from loopd.drivers.shell import BOOT, SESSION, environment
from loopd_protocol.commands import AcpSpec
from loopd_protocol.errors import Refused

AGENT = "LOOPD_AGENT"
"""Mark in the environment of an agent and of all that it starts: which agent process."""

HOMELESS = Path("/var/lib/loopd-agents")
"""Where agents live whose user has no home folder; only root can make folders there."""


def no_servers(sid: str) -> list[dict[str, Any]]:
    """A house without an MCP server of its own."""
    del sid
    return []


@dataclass(frozen=True, kw_only=True)
class Premises:
    """What a daemon lends to hosted agents.

    Attributes:
        data: data folder; each session has the folder `agents/SID` in it.
        boot: id of this boot.
        kinds: folder with the user's own agent kinds, or None.
        mcp_servers: entries of `mcpServers` for a session, in the form of the protocol: the `loopd`
            server, with which an agent idles, reports and ends its goal.
        user: run agents as this user, or None for the daemon's own.
        proxy: the daemon's model proxy, or None.
        environ: the daemon's environment.
    """

    data: Path
    boot: str = "boot"
    kinds: Path | None = None
    mcp_servers: Callable[[str], list[dict[str, Any]]] = no_servers
    user: RunAs | None = None
    proxy: ProxyDoor | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def house(self) -> str:
        """What tells this data folder from others in marks."""
        return hashlib.sha256(os.fsencode(os.path.realpath(self.data))).hexdigest()[:16]

    def folder(self, sid: str) -> Path:
        """Loopd's own folder for a session: stderr."""
        return self.data / "agents" / sid

    def quarters(self, sid: str) -> Path:
        """The folder in which a session's home and work folders are; its agent must be able to reach it."""
        if self.user is None:
            return self.folder(sid)
        if os.path.isdir(self.user.home):
            return Path(self.user.home) / ".loopd" / self.house / sid
        return HOMELESS / self.user.name / self.house / sid


class Door(Protocol):
    """Gives a session its `loopd` MCP server; see `loopd.drivers.fittings.AgentDoor`."""

    def server_for(self, sid: str) -> Mapping[str, Any]:
        """`{name, command, args, env}`."""


def furnished(premises: Premises, door: Door | None, user: RunAs | None, proxy: ProxyDoor | None) -> Premises:
    """The premises with the `loopd` server that agents are told of, their user, and their way to a model."""

    def servers(sid: str) -> list[dict[str, Any]]:
        if door is None:
            return []
        server = dict(door.server_for(sid))
        server["env"] = [{"name": name, "value": value} for name, value in dict(server["env"]).items()]
        return [server]

    return replace(premises, mcp_servers=servers, user=user, proxy=proxy)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start, and where.

    Attributes:
        argv: with the program's full path.
        env: whole environment, without the mark of the process.
        cwd: the session's working folder.
        folder: loopd's own folder for the session.
        quarters: the agent's: home and, without a workspace, its working folder.
        files: absolute path → content, written before the start.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    folder: Path
    quarters: Path
    files: dict[Path, str]


def kind_of(spec: AcpSpec, premises: Premises) -> AgentKind:
    """The kind that a spec names.

    Raises:
        Refused: `invalid` when it names none or both; `not_found`.
    """
    if (spec.agent is None) == (not spec.command):
        raise Refused("invalid", "expected either agent or command", path="$.driver")
    if spec.agent is None:
        return kinds.plain(spec.command)
    return kinds.find(spec.agent, premises.kinds)


def upstream_of(spec: AcpSpec) -> Upstream | None:
    """The endpoint that the session's model calls are led to through the proxy, or None for not."""
    if spec.base_url is None or spec.proxy is False:
        return None
    return Upstream(base_url=spec.base_url, api_key_env=spec.api_key_env)


def program(kind: AgentKind, environ: Mapping[str, str]) -> str | None:
    """Full path of the agent's program, or None when it is not installed."""
    return shutil.which(kind.command[0], path=environ.get("PATH", os.defpath))


def prepare(
    sid: str,
    spec: AcpSpec,
    kind: AgentKind,
    workspace: str | None,
    premises: Premises,
    *,
    passage: Passage | None = None,
    asks: bool = False,
) -> Launch:
    """Everything that the start needs; nothing is written or started.

    Args:
        sid: session.
        spec: its driver's settings.
        kind: what is known of the agent.
        workspace: where it works, or None.
        premises: what the daemon lends.
        passage: its way through the proxy, or None.
        asks: it has to ask before its tools run.

    Raises:
        Refused: `not_found` when the program is not installed, with how to install it; `invalid` when a
            setting is missing, has nowhere to go, or the variable of the key is not set.
    """
    found = program(kind, premises.environ)
    if found is None:
        hint = f"; install it with: {kind.install}" if kind.install else ""
        raise Refused(
            "not_found",
            f"agent {kind.name!r} is not installed: no program {kind.command[0]!r} on the daemon's PATH{hint}",
            path="$.driver.agent",
        )
    quarters = premises.quarters(sid)
    home = quarters / "home"
    cwd = workspace if workspace is not None else str(quarters / "work")
    values = _values(spec, kind, premises.environ, passage)
    places = {"home": str(home), "workspace": cwd, "permission": "ask" if asks else "allow"}
    env = environment(sid, premises.environ)
    if premises.user is not None:
        env |= premises.user.environment
    env |= {name: premises.environ[name] for name in kind.pass_env if name in premises.environ}
    fixed = {**kind.env, **(kind.asking.env if asks else {})}
    own = {name: kinds.filled(text, places) for name, text in fixed.items()}
    env |= {name: text for name, text in own.items() if text is not None}
    argv = [found, *kind.command[1:]]
    files: dict[Path, str] = {}
    if values:
        known = {**values, **places}
        given = {name: kinds.filled(text, known) for name, text in kind.model.env.items()}
        env |= {name: text for name, text in given.items() if text is not None}
        argv += [text for text in (kinds.filled(word, known) for word in kind.model.args) if text is not None]
        for file in kind.model.files:
            text = kinds.filled(file.text, kinds.quoted(known))
            if text is not None:
                files[home / file.path] = text
        if kind.model.own_home or kind.model.files:
            env |= _home(home)
    env |= spec.env
    env |= {SESSION: sid, BOOT: f"{premises.house}.{premises.boot}"}
    return Launch(
        argv=tuple(argv),
        env=env,
        cwd=cwd,
        folder=premises.folder(sid),
        quarters=quarters,
        files=files,
    )


def _home(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_STATE_HOME": str(home / ".local/state"),
        "XDG_CACHE_HOME": str(home / ".cache"),
    }


def _values(
    spec: AcpSpec, kind: AgentKind, environ: Mapping[str, str], passage: Passage | None
) -> dict[str, str]:
    """The session's model settings as texts; empty when it has none."""
    given: dict[str, str] = {}
    if spec.model is not None:
        given["model"] = spec.model
    base_url = spec.base_url if passage is None else passage.base_url
    if base_url is not None:
        parts = urlsplit(base_url)
        given["base_url"] = base_url.rstrip("/")
        given["origin"] = f"{parts.scheme}://{parts.netloc}"
        given["path"] = parts.path.strip("/")
    if spec.api_key_env is not None:
        key = environ.get(spec.api_key_env)
        if not key:
            raise Refused(
                "invalid",
                f"variable {spec.api_key_env!r} is not set in the daemon's environment; expected the API key",
                path="$.driver.api_key_env",
            )
        given |= {"api_key": key, "api_key_env": spec.api_key_env}
    if passage is not None:
        given["api_key"] = passage.key
    if not given:
        return {}
    window = spec.context_tokens or kind.model.context_tokens
    if window:
        given["context_tokens"] = str(window)
    missing = [name for name in kind.model.required if name not in given]
    if missing:
        raise Refused(
            "invalid",
            f"agent {kind.name!r} needs {missing[0]} beside {', '.join(sorted(set(given) & {'model', 'base_url', 'api_key'}))}",
            path=f"$.driver.{missing[0]}",
        )
    takes = " ".join([*kind.model.env.values(), *kind.model.args, *(file.text for file in kind.model.files)])
    if not takes:
        raise Refused(
            "invalid",
            f"agent {kind.name!r} takes no model settings; expected none, or a kind that says how they reach it",
            path="$.driver.model",
        )
    given.setdefault("api_key", kind.model.key)
    return given
