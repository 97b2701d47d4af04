"""A small MCP server for tests, without the SDK so that it starts at once: JSON-RPC lines on stdio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LOCK = threading.Lock()


def schema(**properties: str) -> dict[str, Any]:
    kinds = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": kinds, "required": list(properties)}


def die() -> str:
    print("going down", file=sys.stderr, flush=True)
    os._exit(3)


def fail(why: str) -> str:
    raise ValueError(why)


def wait(seconds: float) -> str:
    time.sleep(seconds)
    return f"waited {seconds}"


def leave_behind() -> str:
    """A process in a session of its own; its pid."""
    return str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)


TOOLS: dict[str, tuple[dict[str, Any], Callable[..., str]]] = {
    "add": (schema(a="integer", b="integer"), lambda a, b: str(a + b)),
    "fail": (schema(why="string"), fail),
    "wait": (schema(seconds="number"), wait),
    "flood": (schema(characters="integer"), lambda characters: "x" * characters),
    "die": (schema(), die),
    "leave_behind": (schema(), leave_behind),
    "secrets": (schema(name="string"), lambda name: os.environ.get(name, "(not set)")),
}


def say(message: dict[str, Any]) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(number: Any, name: str, args: dict[str, Any]) -> None:
    try:
        text, wrong = TOOLS[name][1](**args), False
    except Exception as error:  # noqa: BLE001
        text, wrong = str(error), True
    say({"id": number, "result": {"content": [{"type": "text", "text": text}], "isError": wrong}})


def main() -> None:
    print("this line is no JSON-RPC", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        number, params = asked.get("id"), asked.get("params") or {}
        match asked["method"]:
            case "initialize":
                info = {"name": "demo", "version": "1"}
                result: dict[str, Any] = {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": info,
                }
                say({"id": number, "result": result})
            case "tools/list":
                listed = [
                    {"name": name, "description": f"does {name}", "inputSchema": shape}
                    for name, (shape, _) in TOOLS.items()
                ]
                say({"id": number, "result": {"tools": listed}})
            case "tools/call":
                arguments = params.get("arguments") or {}
                threading.Thread(target=call, args=(number, params["name"], arguments), daemon=True).start()
            case "ping":
                say({"id": number, "result": {}})
            case _:
                pass


if __name__ == "__main__":
    main()
