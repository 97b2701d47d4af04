"""Words, names and volatile bytes that stories are told with."""

from __future__ import annotations

import random

NOUNS = [
    "parser",
    "queue",
    "cache",
    "router",
    "ledger",
    "schema",
    "index",
    "socket",
    "worker",
    "token",
    "buffer",
    "mapper",
    "invoice",
    "account",
    "session",
    "module",
    "fixture",
    "adapter",
    "registry",
    "planner",
    "metric",
    "channel",
    "packet",
    "cursor",
    "journal",
    "snapshot",
    "digest",
    "lexer",
    "shard",
    "tenant",
    "webhook",
    "widget",
    "pipeline",
    "bucket",
    "archive",
    "manifest",
    "signal",
    "kernel",
    "vertex",
    "tensor",
    "gateway",
    "cluster",
]
VERBS = [
    "load",
    "store",
    "merge",
    "split",
    "parse",
    "render",
    "encode",
    "decode",
    "resolve",
    "collect",
    "flush",
    "retry",
    "verify",
    "compile",
    "dispatch",
    "schedule",
    "validate",
    "filter",
    "reduce",
    "expand",
    "compress",
    "inspect",
    "rotate",
    "attach",
    "detach",
    "migrate",
    "hydrate",
    "publish",
]
ADJECTIVES = [
    "stale",
    "nested",
    "empty",
    "partial",
    "remote",
    "cached",
    "hidden",
    "broken",
    "frozen",
    "signed",
    "sparse",
    "dense",
    "legacy",
    "atomic",
    "lazy",
    "shared",
    "idle",
    "pending",
    "nullable",
    "recursive",
    "ordered",
    "immutable",
    "transient",
]
FILLERS = [
    "first",
    "then",
    "after",
    "because",
    "while",
    "although",
    "before",
    "since",
    "unless",
    "when",
    "whether",
    "once",
    "until",
    "where",
    "whereas",
]


def name(rng: random.Random) -> str:
    """A name of a thing, hardly ever the same twice."""
    return f"{rng.choice(VERBS)}_{rng.choice(ADJECTIVES)}_{rng.choice(NOUNS)}_{rng.randrange(10_000)}"


def path(rng: random.Random, ending: str = "py") -> str:
    """A path of a source file."""
    return f"src/{rng.choice(NOUNS)}/{rng.choice(VERBS)}_{rng.choice(NOUNS)}_{rng.randrange(10_000)}.{ending}"


def sentence(rng: random.Random, count: int = 12) -> str:
    """A sentence with little in common with any other one."""
    pool = NOUNS + VERBS + ADJECTIVES + FILLERS
    return " ".join(rng.sample(pool, count)).capitalize() + "."


def source(rng: random.Random, lines: int = 12) -> str:
    """Lines that look like a program."""
    return "\n".join(
        f"    {name(rng)} = {rng.choice(VERBS)}({rng.choice(NOUNS)}, {rng.randrange(1_000)})"
        for _ in range(lines)
    )


def hexes(rng: random.Random, digits: int = 32) -> str:
    """Hexadecimal digits."""
    return "".join(rng.choices("0123456789abcdef", k=digits))


def uuid(rng: random.Random) -> str:
    """A UUID."""
    return "-".join(hexes(rng, digits) for digits in (8, 4, 4, 4, 12))


def moment(n: int, step_s: int = 17) -> str:
    """An ISO moment that moves on with `n`."""
    second = n * step_s
    return f"2026-01-{1 + second // 86_400:02}T{second // 3_600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
