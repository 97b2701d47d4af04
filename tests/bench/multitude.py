"""A journal with very many sessions and turns, written without the writer: rows, chains and projections."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from loopd.core.passive import passive_row
from loopd.store import chain, opening
from loopd.store.ledger import JOURNAL_COLUMNS
from loopd.store.projection import SESSION_COLUMNS, TURN
from loopd_protocol import events as ev
from loopd_protocol.holds import UserSuspend
from loopd_protocol.sources import Trigger
from tests.bench.journal_load import AT_MS, seasoned

_encode = msgspec.json.Encoder().encode
_SESSIONS_AT_ONCE = 500
_EVENTS_OF_A_TURN = 3


def _insert(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def write(path: Path, *, sessions: int, turns: int) -> int:
    """Write that many suspended sessions with that many turns each; returns the number of events."""
    path.touch(mode=0o600)
    connection = opening.connect(str(path))
    ledger, _ = opening.prepare(connection, boot="bt_multitude", now_ms=AT_MS, max_bytes=None)
    connection.execute("PRAGMA synchronous = OFF")
    seq, h = 0, chain.log_genesis(ledger.log_id)
    bodies = [
        (_encode(event), event.kind)
        for n in range(1, turns + 1)
        for event in (
            ev.TurnStarted(n=n, trigger=Trigger.CONTINUATION, prompt="Continue."),
            ev.TurnStep(
                n=n, step=1, total=n, text=f"Part {n} of the report is written; part {n + 1} comes next."
            ),
            ev.TurnCompleted(n=n, outcome="completed", steps=1),
        )
    ]
    digests = [chain.body_digest(body) for body, _ in bodies]
    state = seasoned()
    for first in range(1, sessions + 1, _SESSIONS_AT_ONCE):
        rows: list[tuple[Any, ...]] = []
        places: list[tuple[Any, ...]] = []
        people: list[tuple[Any, ...]] = []
        holds: list[tuple[Any, ...]] = []
        for num in range(first, min(first + _SESSIONS_AT_ONCE, sessions + 1)):
            sid, name = f"ses_{num:08}", f"s{num}"
            created = ev.SessionCreated(
                sid=sid,
                num=num,
                name=name,
                driver={"kind": "scripted", "script": "x.jsonl"},
                preset="published",
            )
            hold = UserSuspend(by="uid:1000", reason="waits", since_ms=AT_MS, until_ms=AT_MS * 2 + num)
            gate = ev.GateChanged(
                gate="closed", cause="suspend", by="uid:1000", gen=1, holds=(hold,), added=hold
            )
            body, closing = _encode(created), _encode(gate)
            life: Iterator[tuple[bytes, str, bytes, int | None]] = iter(
                (
                    (body, created.kind, chain.body_digest(body), None),
                    *(
                        (*content, digest, at // _EVENTS_OF_A_TURN + 1)
                        for at, (content, digest) in enumerate(zip(bodies, digests, strict=True))
                    ),
                    (closing, gate.kind, chain.body_digest(closing), None),
                )
            )
            sh = chain.session_genesis(ledger.log_id, num)
            ss = 0
            begun = seq
            for data, kind, digest, turn in life:
                seq, ss = seq + 1, ss + 1
                row = chain.row_bytes(
                    seq=seq, sid=num, ss=ss, epoch=1, boot=1, at_ms=AT_MS, kv=1, turn=turn, cause_seq=None,
                    kind=kind, principal="driver", body_sha=digest, blob=None,
                )  # fmt: skip
                h, sh = chain.link(h, row), chain.link(sh, row)
                rows.append((seq, num, ss, 1, 1, AT_MS, kind, 1, turn, None, "driver", data, None, h, sh))
            for n in range(1, turns + 1):
                at = 1 + _EVENTS_OF_A_TURN * (n - 1) + 1
                end = at + _EVENTS_OF_A_TURN - 1
                places.append(
                    (num, n, "continuation", "completed", begun + at, begun + end, at, end, AT_MS, AT_MS, 1, 20,
                     None, "[]")
                )  # fmt: skip
            after = replace(
                state, sid=sid, num=num, name=name, ss=ss, turn=None, turns=turns, goal=None,
                gate=replace(state.gate, holds=(hold,), gen=1),
            )  # fmt: skip
            people.append((*astuple(passive_row(after)), ss, msgspec.msgpack.encode(after)))
            holds.append((num, hold.kind, hold.until_ms, _encode(hold)))
        connection.execute("BEGIN")
        connection.executemany(_insert("session", SESSION_COLUMNS), people)
        connection.executemany(_insert("hold", ("sid", "kind", "until_ms", "body")), holds)
        connection.executemany(_insert("journal", JOURNAL_COLUMNS), rows)
        connection.executemany(_insert("turn", TURN.columns), places)
        connection.execute("COMMIT")
        if first % (20 * _SESSIONS_AT_ONCE) == 1:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return seq


def size(path: Path) -> int:
    """Bytes of a database that was just written."""
    with sqlite3.connect(path) as connection:
        pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    return pages * opening.PAGE_BYTES
