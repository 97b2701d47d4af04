"""What the house forbids: the core may not act, the protocol stands on msgspec, modules stay readable."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
CORE = sorted((TOP / "loopd/core").rglob("*.py"))
PROTOCOL = sorted((TOP / "protocol/loopd_protocol").rglob("*.py"))
SHIPPED = sorted([*(TOP / "loopd").rglob("*.py"), *PROTOCOL])

CORE_MAY_IMPORT = {"msgspec", "cronsim", "zoneinfo", "loopd", "loopd_protocol"}
PROTOCOL_MAY_IMPORT = {"msgspec", "loopd_protocol"}
IMPURE_MODULES = frozenset(
    (
        "asyncio",
        "anyio",
        "concurrent",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    )
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})
CLOCK_READS = frozenset({"now", "today", "utcnow"})

TABLES = "one table of words: a reader looks a name up, and a split would hide which names exist"
LONG_MODULES = {
    "protocol/loopd_protocol/commands.py": TABLES,
    "protocol/loopd_protocol/events.py": TABLES,
    "loopd/config/settings.py": TABLES,
    "loopd/testing/store_suite.py": "one contract of a store, promise by promise; halves would not be a contract",
}


def shown(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]


def impurities(source: str) -> list[str]:
    """What a pure module would not say, one line each."""
    tree = ast.parse(source)
    found = [f"{line}: imports {name}" for line, name in imported(tree) if name in IMPURE_MODULES]
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                found.append(f"{node.lineno}: {type(node).__name__}")
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                found.append(f"{node.lineno}: calls {name}()")
            case ast.Call(func=ast.Attribute(attr=name), args=[]) if name in CLOCK_READS:
                found.append(f"{node.lineno}: reads a clock by .{name}()")
            case ast.Call(func=ast.Attribute(attr="now", value=ast.Name(id="datetime"))):
                found.append(f"{node.lineno}: reads a clock by datetime.now()")
            case ast.Global():
                found.append(f"{node.lineno}: global {', '.join(node.names)}")
            case _:
                pass
    return found


def test_the_core_neither_waits_nor_reads_a_clock_nor_acts() -> None:
    assert len(CORE) > 5
    found = {shown(path): impurities(path.read_text()) for path in CORE}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from os import path",
        "import logging",
        "async def f() -> None: ...",
        "import random",
        "open('x')",
        "print(1)",
        "from datetime import datetime\ndatetime.now(tz=None)",
        "import datetime\ndatetime.datetime.now()",
        "def f():\n    global x\n    x = 1",
    ],
)
def test_each_impurity_is_seen(line: str) -> None:
    assert impurities(line)


def test_a_moment_handed_in_is_no_impurity() -> None:
    assert impurities("def f(now: int) -> int:\n    return now + 1") == []


@pytest.mark.parametrize(
    ("paths", "allowed"), [(CORE, CORE_MAY_IMPORT), (PROTOCOL, PROTOCOL_MAY_IMPORT)], ids=["core", "protocol"]
)
def test_core_and_protocol_import_only_what_is_listed(paths: list[Path], allowed: set[str]) -> None:
    third_party = allowed | set(sys.stdlib_module_names)
    strangers = [
        f"{shown(path)}:{line} {name}"
        for path in paths
        for line, name in imported(ast.parse(path.read_text()))
        if name not in third_party
    ]
    assert strangers == []


def test_the_core_imports_no_room_and_the_protocol_no_loopd() -> None:
    reached = {
        (shown(path), node.module)
        for path in [*CORE, *PROTOCOL]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loopd.")
    }
    assert {(path, module) for path, module in reached if not str(module).startswith("loopd.core")} == set()
    assert {path for path, _ in reached if path.startswith("protocol/")} == set()


def test_a_module_over_400_lines_is_argued_for() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in SHIPPED}
    long = {path for path, lines in lengths.items() if lines > 400}
    assert long - LONG_MODULES.keys() == set(), "split it, or argue for it in LONG_MODULES"
    assert LONG_MODULES.keys() - long == set(), "short again: take it off the list"


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert [shown(path) for path in SHIPPED if path.stem in vague or path.parent.name in vague] == []
