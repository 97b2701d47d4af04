"""Agents at work: what comes before a loop, and what healthy runs are made of."""

from __future__ import annotations

import random

from tests.corpus import words
from tests.corpus.cases import Move, Story, call, do, sh


def working(rng: random.Random) -> Story:
    """A coding agent that gets on: it reads, searches, edits, and tests until all is green, then the next thing."""
    failing = [words.name(rng), words.name(rng)]
    while True:
        place = words.path(rng)
        yield do(call("read_file", {"path": place}, words.source(rng)), text=f"Let me look at {place}.")
        if rng.random() < 0.6:
            word = words.name(rng)
            found = "\n".join(
                f"{words.path(rng)}:{rng.randrange(900)}: {word}" for _ in range(rng.randint(1, 4))
            )
            yield do(sh(f"grep -rn {word} src", found))
        if rng.random() < 0.3:
            yield do(sh(f"ls -la {place.rsplit('/', 1)[0]}", "\n".join(words.path(rng) for _ in range(4))))
        if rng.random() < 0.5:
            yield do(
                call(
                    "edit_file",
                    {"path": place, "old": words.name(rng), "new": words.name(rng)},
                    "replaced 1 occurrence",
                ),
                text=words.sentence(rng, 9),
            )
            passed = rng.randrange(40, 900)
            if failing:
                names = "\n".join(
                    f"FAILED test_{name} - assert {rng.randrange(99)} == {rng.randrange(99)}"
                    for name in failing
                )
                result = f"{names}\n{len(failing)} failed, {passed} passed"
                yield do(sh("pytest -q", result, ok=False, exit_code=1))
                failing.pop()
            else:
                yield do(sh("pytest -q", f"{passed} passed"))
                failing = [words.name(rng) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.15:
            yield do(
                call("read_file", {"path": words.path(rng)}, words.source(rng, 6)),
                call("read_file", {"path": words.path(rng)}, words.source(rng, 6)),
            )


def plainly(moves: int, rng: random.Random) -> list[Move]:
    """So many moves of work."""
    story = working(rng)
    return [next(story) for _ in range(moves)]
