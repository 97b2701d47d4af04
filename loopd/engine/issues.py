"""The optional Markdown file of an abort in the workspace: a copy of what the journal has.

The journal is the record; the file follows its commit and is written again at the next boot if it is not
there by then. One file for each path: a later issue replaces an earlier one, unless the path says `{id}`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from pathlib import Path

from loopd.core.report_page import issue_markdown
from loopd.core.settings import settings_for
from loopd.core.state import Session
from loopd.engine.ports import Store
from loopd_protocol import events as ev

logger = logging.getLogger("loopd.engine")

LOOKED_AT = 100
LOOKED_BACK = 10_000
"""A boot looks at the newest issues among so many last events: what a dying daemon left is there."""

_writing: set[asyncio.Future[None]] = set()


def place_of(session: Session, issue: ev.IssueWritten) -> Path | None:
    """Where the issue's file belongs, or None when none is asked for."""
    path = settings_for(session.preset, session.overrides).stop.issue_file
    if not path or session.workspace is None:
        return None
    return Path(session.workspace) / path.replace("{id}", issue.id)


def write(workspace: Path, place: Path, text: str) -> None:
    """Put the file in its place, whole or not at all.

    Raises:
        OSError: it cannot be written.
        ValueError: a link leads out of the workspace.
    """
    folder = place.parent
    root = workspace.resolve(strict=True)
    if not folder.resolve().is_relative_to(root):
        raise ValueError(f"{place} leads out of the workspace {workspace}")
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".loopd-", suffix=".md")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise


def file_soon(session: Session, issue: ev.IssueWritten, explanation: str) -> None:
    """Write the file of an issue that is durable, if one is asked for; a failure is logged, no more."""
    place = place_of(session, issue)
    if place is None or session.workspace is None:
        return
    text = issue_markdown(issue, sid=session.sid, name=session.name, explanation=explanation)
    job = asyncio.get_running_loop().run_in_executor(None, write, Path(session.workspace), place, text)
    _writing.add(job)
    job.add_done_callback(lambda done: _written(done, session.sid, place))


def _written(job: asyncio.Future[None], sid: str, place: Path) -> None:
    _writing.discard(job)
    if not job.cancelled() and (error := job.exception()) is not None:
        logger.warning("issue not filed", extra={"sid": sid, "path": str(place), "cause": str(error)})


def file_all(session: Session, events: tuple[ev.Event, ...]) -> None:
    """Write the files of the issues among events that are durable now."""
    issues = [event for event in events if isinstance(event, ev.IssueWritten)]
    for issue in issues:
        said = next((event.explanation for event in events if isinstance(event, ev.SessionEnded)), "")
        file_soon(session, issue, said)


async def file_missing(store: Store) -> int:
    """After a boot: write the files that the last daemon did not come to write; returns how many."""
    after = max(0, store.head - LOOKED_BACK)
    stored = await store.page(
        sid=None, after=after, before=None, limit=LOOKED_AT, kinds=("issue.written",), newest=True
    )
    newest = {each.sid: each for each in stored if each.sid is not None}
    sessions = await store.load_sessions(list(newest))
    count = 0
    for sid, each in newest.items():
        session, issue = sessions.get(sid), ev.decode(each.body)
        if session is None or session.status == "live" or not isinstance(issue, ev.IssueWritten):
            continue
        place = place_of(session, issue)
        if place is None or place.exists():
            continue
        ends = await store.session_tail(sid, kinds=("session.ended",), limit=1)
        ended = ev.decode(ends[0].body) if ends else None
        said = ended.explanation if isinstance(ended, ev.SessionEnded) else ""
        file_soon(session, issue, said)
        count += 1
    return count
