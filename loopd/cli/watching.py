"""`loopctl watch`: events as they happen, from a cursor that outlives this process and the daemon."""

from __future__ import annotations

import os
import time

from loopd.cli.console import safe
from loopd.cli.consuming import GONE, Consumer
from loopd.cli.exits import Failure
from loopd.cli.lines import flat, line
from loopd.cli.standing import names_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loopd.cli.console import Console
    from loopd.cli.run import Run

NO_END = "a stream has no end, and -o json prints one object; use -o ndjson"
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0


def watch(run: Run) -> None:
    """Print events until told to stop; keep the cursor file, or the consumer, up to date behind them."""
    args, console = run.args, run.console
    if console.format == "json" and args.limit is None:
        raise Failure("usage", f"{NO_END}, or -n N")
    if args.after is not None and args.cursor_file:
        raise Failure("usage", "--after and --cursor-file both say where to begin; expected one of them")
    if args.consumer and (args.after is not None or args.cursor_file):
        raise Failure(
            "usage", "a consumer has a place of its own; expected neither --after nor --cursor-file"
        )
    if args.consumer and (args.sid or args.kind):
        raise Failure("usage", "a consumer has a selection of its own; expected neither sessions nor --kind")
    run.link.client(deltas=args.deltas)
    log, after = run.link.log, args.after
    if args.cursor_file:
        after = read_cursor(args.cursor_file, log, console.err.write)
    consumer = Consumer(run, args.consumer) if args.consumer else None
    if consumer is not None:
        after, args.sid, args.kind = consumer.after, consumer.sids, consumer.kinds
    frames = lasting(run, log, after) if args.reconnect else _frames(run, log, after)
    if consumer is None:
        _print(run, frames, log, None)
        return
    try:
        _print(run, consumer.passed(frames), log, consumer)
    finally:
        consumer.leave()


def _print(run: Run, frames: Iterator[dict[str, Any]], log: str, consumer: Consumer | None) -> None:
    args, console = run.args, run.console
    names = names_of(run, *args.sid)
    collected: list[dict[str, Any]] = []
    number = 0
    for event in readable(frames, console):
        if event.get("t") == "delta":
            _show_delta(console, event)
            continue
        number += 1
        if console.format == "json":
            collected.append(event)
        else:
            show_event(run, event, names)
            console.flush()
            # Behind the output: an event may come twice after a crash, it is never left out.
            if args.cursor_file:
                write_cursor(args.cursor_file, log, event["seq"])
            if consumer is not None:
                consumer.done(event["seq"])
        if number == args.limit:
            break
    if console.format == "json":
        console.json({"events": collected})
        console.flush()
        if args.cursor_file and collected:
            write_cursor(args.cursor_file, log, collected[-1]["seq"])
        if consumer is not None and collected:
            consumer.done(collected[-1]["seq"])


def _frames(run: Run, log: str, after: int | None) -> Iterator[dict[str, Any]]:
    args = run.args
    seconds = None if args.timeout is None else args.timeout / 1_000
    return run.link.stream(after=after, log=log, sids=args.sid, kinds=args.kind, timeout_s=seconds)


def lasting(run: Run, log: str, after: int | None) -> Iterator[dict[str, Any]]:
    """Frames of a subscription that is taken up again where it broke, as often as needed."""
    position = run.link.head if after is None else after
    frames, pause_s = _frames(run, log, position), RETRY_FIRST_S
    while True:
        try:
            for frame in frames:
                if frame.get("t") == "ev":
                    position = frame["seq"]
                pause_s = RETRY_FIRST_S
                yield frame
        except Failure as failure:
            if failure.code not in GONE or (failure.code == "timeout" and run.args.timeout is not None):
                raise
        run.link.close()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_MAX_S)
        frames = _again(run, log, position)


def _again(run: Run, log: str, position: int) -> Iterator[dict[str, Any]]:
    # A generator of its own, so that a failure to connect is raised where it is handled.
    run.link.client(deltas=run.args.deltas)
    yield from _frames(run, log, position)


def readable(frames: Iterator[dict[str, Any]], console: Console) -> Iterator[dict[str, Any]]:
    """Flat events, and deltas as they are; gaps are told on stderr and never hidden."""
    for frame in frames:
        sort = frame.get("t")
        if sort == "ev":
            yield flat(frame)
        elif sort == "delta":
            yield frame
        elif sort == "gap":
            console.err.write(
                f"loopctl: gap: events {frame.get('from')} to {frame.get('to')} are not here "
                f"({safe(str(frame.get('why')))})\n"
            )


def show_event(run: Run, event: dict[str, Any], names: dict[str, str]) -> None:
    """One event as a line for people or as an object."""
    if run.console.format == "table":
        run.console.line(line(event, run.console, names))
    else:
        run.console.json(event)


def _show_delta(console: Console, frame: dict[str, Any]) -> None:
    if console.format == "ndjson":
        console.json({name: frame.get(name) for name in ("t", "sid", "n", "text")})
    elif console.format == "table":
        console.line(console.styled(f"  … {safe(str(frame.get('text', '')))}", "dim"))
    console.flush()


# -- cursor file ------------------------------------------------------------------------------


def read_cursor(path: str, log: str, warn: Callable[[str], object]) -> int | None:
    """The sequence number in a cursor file, or None when there is none yet.

    A cursor of another log (the data was restored or replaced) is told and not used.
    """
    import json

    try:
        with open(path, encoding="utf-8") as file:
            cursor = json.load(file)
        seq, of = int(cursor["seq"]), str(cursor["log"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failure("invalid", f"cursor file {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        expected = 'expected {"log": …, "seq": …}'
        raise Failure("invalid", f"cursor file {path} holds no cursor; {expected}") from None
    if of != log:
        warn(
            f"loopctl: gap: the cursor in {safe(path)} is of log {safe(of)}; this is {safe(log)}: starting over\n"
        )
        return 0
    return seq


def write_cursor(path: str, log: str, seq: int) -> None:
    """Replace the cursor file; a reader never sees half of one."""
    import json

    fresh = f"{path}.{os.getpid()}"
    try:
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(json.dumps({"log": log, "seq": seq}) + "\n")
        os.replace(fresh, path)
    except OSError as error:
        raise Failure("invalid", f"cursor file {path}: {error.strerror}") from None
