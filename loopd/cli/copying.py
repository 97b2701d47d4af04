"""Verbs that carry sessions out and in: export, import."""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import tempfile

from loopd.cli.console import plural, safe
from loopd.cli.exits import Failure
from loopd.cli.forensics import patient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run

SUFFIXES = {"zip": ".zip", "html": ".html", "otlp-json": ".otlp.json", "ndjson": ".ndjson"}


def export(run: Run) -> None:
    """Writes an archive, or a page, spans or lines made from one."""
    try:
        _export(run)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(
            "invalid", f"cannot write {error.filename or run.args.file!r}: {error.strerror}"
        ) from None


def _export(run: Run) -> None:
    args = run.args
    if (args.sid is None) != args.all:
        raise Failure("usage", "which session? expected SID, or --all for the whole log")
    target = args.file or _name(args)
    if target == "-" and args.format == "zip" and sys.stdout.isatty():
        raise Failure("usage", "a zip is no text for a terminal; name a file with --file")
    if target != "-" and os.path.exists(target) and not args.force:
        raise Failure("already_exists", f"{target!r} exists; --force replaces it")
    folder = None if target == "-" else os.path.dirname(os.path.abspath(target))
    descriptor, temporary = tempfile.mkstemp(prefix=".loopd-", suffix=".zip", dir=folder)
    os.close(descriptor)
    try:
        told = _fetch(run, temporary) if args.data is None else _offline(run, temporary)
        if args.format == "zip":
            _place(temporary, target)
        else:
            _render(args, temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    if target == "-":
        return
    if run.console.format != "table":
        run.console.json({"file": os.path.abspath(target), **told})
        return
    counts = told["manifest"]["counts"]
    words = ", ".join(plural(counts[things], things) for things in ("events", "sessions", "blobs"))
    profile = told["manifest"]["redaction"]["profile"]
    redacted = (
        f"; redaction {profile}: {counts['redacted_events']:,} events changed" if profile != "none" else ""
    )
    run.console.line(f"{safe(target)}: {words}{redacted}")
    if args.format == "zip":
        run.console.line(f"sha256 {told['sha256']}; check it with `loopctl verify {safe(target)}`")


def _name(args: Any) -> str:
    return f"loopd-{args.sid or 'log'}{SUFFIXES[args.format]}"


def _fetch(run: Run, temporary: str) -> dict[str, Any]:
    args = run.args
    patient(run)
    command: dict[str, Any] = {"t": "export.open", "redact": args.redact}
    for name in ("sid", "since", "until"):
        if getattr(args, name) is not None:
            command[name] = getattr(args, name)
    if args.links:
        command["links"] = True
    told = run.link.ask(command)
    offset: int | None = 0
    show = run.console.err.isatty()
    with open(temporary, "wb") as out:
        while offset is not None:
            piece = run.link.ask({"t": "export.read", "id": told["id"], "offset": offset})
            out.write(base64.b64decode(piece["data"]))
            offset = piece["next"]
            if show:
                run.console.err.write(f"\r{(offset or told['bytes']) * 100 // max(1, told['bytes'])} %")
    if show:
        run.console.err.write("\r     \r")
    run.link.ask({"t": "export.close", "id": told["id"]})
    return told


def _offline(run: Run, temporary: str) -> dict[str, Any]:
    """Straight from a data folder: nothing is asked of a daemon and nothing is written there."""
    from contextlib import closing
    from pathlib import Path

    from loopd.cli.offline import journal_of
    from loopd.core.redactor import Redactor
    from loopd.store import opening
    from loopd.store.export import build, sha256_of
    from loopd.store.extent import Wanted
    from loopd.store.queries import find_session
    from loopd_protocol.errors import Refused

    args = run.args
    path = journal_of(args.data)
    key = path.parent / "redaction.key"
    try:
        alone = not path.with_name(f"{path.name}-wal").exists()
        with closing(opening.connect_reader(path, alone=alone)) as connection:
            identity = opening.identify(connection)
            sid = None
            if args.sid is not None:
                sid = find_session(connection, args.sid)
                if sid is None:
                    raise Failure("not_found", f"no session {args.sid!r} in this journal")
            manifest = build(
                connection,
                identity.log_id,
                Wanted(sid=sid, since=args.since, until=args.until, links=args.links),
                Path(temporary),
                Redactor(args.redact, key=key.read_bytes() if key.exists() else os.urandom(32)),
            )
    except Refused as refused:
        raise Failure(refused.code, refused.message, path=refused.path) from None
    digest, size = sha256_of(Path(temporary))
    return {"manifest": {k: v for k, v in manifest.items() if k != "files"}, "sha256": digest, "bytes": size}


def _place(temporary: str, target: str) -> None:
    if target == "-":
        with open(temporary, "rb") as file:
            while piece := file.read(1 << 20):
                sys.stdout.buffer.write(piece)
        return
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)
    os.replace(temporary, target)


def _render(args: Any, archive: str, target: str) -> None:
    from pathlib import Path

    from loopd.store.archive import Archive
    from loopd_protocol.errors import Refused

    try:
        with Archive(Path(archive)) as opened:
            rendered = _RENDERERS[args.format](opened)
    except Refused as refused:
        raise Failure(refused.code, refused.message) from None
    if target == "-":
        sys.stdout.write(rendered)
        return
    with open(target, "w", encoding="utf-8", errors="backslashreplace") as out:
        out.write(rendered)


def _html(archive: Any) -> str:
    from loopd.transcripts.timeline import page
    from loopd.transcripts.timeline_story import Moment

    return page(
        (
            Moment(row.seq, row.sid, row.ss, row.at_ms, row.kind, row.body)
            for row in archive.rows()
            if row.sid is not None and row.body is not None
        ),
        archive.manifest,
    )


def _otlp(archive: Any) -> str:
    import json

    from loopd.telemetry.otlp_json import document
    from loopd.telemetry.spans import Spans

    spans = Spans(log=archive.log, content=True)
    names = {said["num"]: str(said["sid"]) for said in archive.values("sessions.ndjson")}
    made = [
        span
        for row in archive.rows()
        if row.sid is not None and row.body is not None
        for span in spans.feed(names.get(row.sid, str(row.sid)), row.seq, row.at_ms, row.kind, row.body)
    ]
    return json.dumps(document([*made, *spans.finish()], log=archive.log), ensure_ascii=False) + "\n"


def _ndjson(archive: Any) -> str:
    return b"".join(archive.lines("journal.ndjson")).decode()


_RENDERERS = {"html": _html, "otlp-json": _otlp, "ndjson": _ndjson}


# -- import -----------------------------------------------------------------------------------


def bring_in(run: Run) -> None:
    """Makes the sessions of an archive readable here, or forgets one that was imported."""
    args, console = run.args, run.console
    if args.drop:
        answer = run.link.change({"t": "import.drop", "sid": args.file})
        if console.format != "table":
            console.json(answer)
        else:
            console.line(f"{safe(args.file)} is forgotten")
        return
    from pathlib import Path

    from loopd.store.export import sha256_of

    path = Path(args.file)
    if not path.is_file():
        raise Failure("not_found", f"no file {args.file!r}; expected what `loopctl export` wrote")
    patient(run)
    digest, size = sha256_of(path)
    begun = run.link.change({"t": "import.open", "bytes": size, "sha256": digest})
    with path.open("rb") as file:
        offset = 0
        while piece := file.read(int(begun["chunk"])):
            data = base64.b64encode(piece).decode()
            answer = run.link.change({"t": "import.write", "id": begun["id"], "offset": offset, "data": data})
            offset = answer["next"]
    answer = run.link.change({"t": "import.finish", "id": begun["id"]})
    if console.format != "table":
        console.json(answer)
        return
    for session in answer["sessions"]:
        where = session["imported"]
        told = "was here already" if answer["dup"] else "can be read here; it never runs"
        console.line(
            f"{safe(session['name'])} ({safe(session['sid'])}), {where['events']:,} events of log {safe(where['log'])}: {told}"
        )
