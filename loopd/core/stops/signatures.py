"""Error signatures: the same command failed in the same way. Pure."""

from __future__ import annotations

import hashlib

from loopd.core.masks import mask_failure_line

SIGNATURE_LINES = 20
"""Lines of the error output that a signature looks at."""

_LINE_CHARS = 2_000


def error_signature(command: str, exit_code: int | None, stderr: str, stdout: str = "") -> str:
    """16 hex digits that are equal iff the same command failed in the same way.

    The first 20 non-blank lines of `stderr` count; when it is blank, the last 20 of `stdout`, because
    many test runners write there. ANSI codes, times, durations, addresses, process numbers and
    temporary paths do not count; values of assertions do.

    Args:
        command: the command line; white space around it does not count.
        exit_code: None for unknown, which equals no number.
        stderr: whole or cut behind its first 20 lines.
        stdout: whole or cut before its last 20 lines.
    """
    lines = [line for line in stderr.splitlines() if line.strip()][:SIGNATURE_LINES]
    stream = "stderr"
    if not lines:
        stream = "stdout"
        lines = [line for line in stdout.splitlines() if line.strip()][-SIGNATURE_LINES:]
    parts = [command.strip(), str(exit_code), stream]
    parts += [mask_failure_line(line[:_LINE_CHARS]) for line in lines]
    whole = "\0".join(parts)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]
