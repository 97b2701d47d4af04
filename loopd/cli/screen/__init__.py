"""`loopctl top`: the fleet and one session on a terminal screen, live.

`rows` and `slash` decide (what stands where, what a typed line means), `feed` talks to the daemon,
`app`, `fleet_view` and `session_view` show. Textual is imported by those three only.
"""

from __future__ import annotations

import sys

from loopd.cli.exits import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from loopd.cli.run import Run


def top(run: Run) -> int:
    """Show the screen until the person leaves it.

    Raises:
        Failure: there is no terminal, or no daemon to begin with.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Failure("usage", "a screen needs a terminal; `loopctl ps` and `loopctl watch` do not")
    run.link.ask({"t": "daemon.status"})  # refused now, in one line, rather than on an empty screen
    if run.args.session is not None:
        run.link.ask({"t": "session.get", "sid": run.args.session})
    from loopd.cli.screen.app import Top
    from loopd.cli.screen.feed import Feed

    feed = Feed(run.link)
    try:
        return Top(feed, run.args.session).run() or 0
    finally:
        feed.close()
