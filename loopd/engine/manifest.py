"""The manifest of a turn: what the model saw, as names and digests.

Most of what a turn shows was shown by the turn before. So a manifest says which run of rows it takes
over from an earlier one, and lists only what is new; without that, a session of n turns would store
n² rows. Chains end at a whole manifest, after at most `CHAIN_LENGTH` links and whenever a session is
loaded again. Whoever deletes old manifests keeps those that newer ones build on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from itertools import takewhile

import msgspec

from loopd.core.conversation import Message

MANIFEST_VERSION = 1
CHAIN_LENGTH = 256

Row = tuple[int, str, str, bool, str, str | None]
"""(ss, role, source, ephemeral, SHA-256 of the content, tool call id)."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model saw at the beginning of a turn.

    Attributes:
        base: digest of the manifest that rows are taken over from, or None.
        skip, keep: of the rows of `base` behind its system prompt, `keep` rows behind the first `skip`.
        system: the rows of the system prompt; their content is a blob of its own.
        messages: the rows behind those that are taken over, in order.
        shortened: results and arguments of old steps may have been cut to so many characters; the
            digest of a row says whether they were.
    """

    v: int
    n: int
    base: str | None = None
    skip: int = 0
    keep: int = 0
    system: tuple[Row, ...] = ()
    messages: tuple[Row, ...] = ()
    tools_withheld: bool
    driver_sha256: str
    config_revision: str
    gate_gen: int
    shortened: tuple[int, ...] = ()


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def content_digest(message: Message) -> str:
    """Digest of everything in a message that reaches the model."""
    body = [message.text, [(c.id, c.name, c.args) for c in message.calls]]
    return sha256(msgspec.json.encode(body, order="sorted"))


class Manifests:
    """Writes the manifests of one session, each as far as it differs from the one before."""

    def __init__(self) -> None:
        self._base: str | None = None
        self._length = 0
        self._shown: tuple[Message, ...] = ()

    def of_turn(
        self,
        n: int,
        messages: tuple[Message, ...],
        *,
        tools_withheld: bool,
        driver_sha256: str,
        config_revision: str,
        gate_gen: int,
        shortened: tuple[int, ...] = (),
    ) -> tuple[str, dict[str, bytes]]:
        """The digest of a turn's manifest, and the blobs that it needs."""
        blobs: dict[str, bytes] = {}
        system = []
        for message in takewhile(lambda m: m.ss == 0, messages):
            data = message.text.encode("utf-8", "surrogatepass")
            blobs[sha256(data)] = data
            system.append(_row(message, sha256(data)))
        shown = messages[len(system) :]
        if self._base is None or self._length >= CHAIN_LENGTH:
            skip = keep = self._length = 0
        else:
            skip, keep = _taken_over(self._shown, shown)
        body = Manifest(
            v=MANIFEST_VERSION,
            n=n,
            base=self._base if keep else None,
            skip=skip,
            keep=keep,
            system=tuple(system),
            messages=tuple(_row(message, content_digest(message)) for message in shown[keep:]),
            tools_withheld=tools_withheld,
            driver_sha256=driver_sha256,
            config_revision=config_revision,
            gate_gen=gate_gen,
            shortened=shortened,
        )
        data = msgspec.json.encode(body)
        digest = sha256(data)
        blobs[digest] = data
        self._length = self._length + 1 if keep else 0
        self._base, self._shown = digest, shown
        return digest, blobs


def _row(message: Message, digest: str) -> Row:
    return (message.ss, message.role, message.source, message.ephemeral, digest, message.call_id)


def _taken_over(before: tuple[Message, ...], now: tuple[Message, ...]) -> tuple[int, int]:
    """Where the first message of `now` stood in `before`, and how many there were the same from it on."""
    if not now:
        return 0, 0
    skip = next((i for i, message in enumerate(before) if message is now[0]), len(before))
    # What is the same is a beginning, so halving finds its end; comparing slices costs next to nothing.
    low, high = 0, min(len(before) - skip, len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if before[skip + low : skip + middle] == now[low:middle]:
            low = middle
        else:
            high = middle - 1
    return (skip, low) if low else (0, 0)


async def rows_of(manifest: Manifest, blob: Callable[[str], Awaitable[bytes | None]]) -> list[Row] | None:
    """All rows of a manifest, with what it takes over; None when an earlier one is not stored any more."""
    chain = [manifest]
    while (base := chain[-1].base) is not None:
        data = await blob(base)
        if data is None:
            return None
        chain.append(msgspec.json.decode(data, type=Manifest))
    rows: list[Row] = []
    for link in reversed(chain):
        rows = [*rows[link.skip : link.skip + link.keep], *link.messages]
    return [*manifest.system, *rows]
