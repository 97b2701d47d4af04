"""`loopctl show --calls`: the model calls of a turn that went through the proxy, as a table."""

from __future__ import annotations

from loopd.cli.console import safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loopd.cli.run import Run


def show_calls(run: Run, calls: list[dict[str, Any]]) -> None:
    """One row for each call, oldest first."""
    if not calls:
        run.console.line("no model call of this turn went through the proxy (see --proxy of `loopctl new`)")
        return
    for place, call in enumerate(calls, 1):
        usage = call.get("usage") or {}
        words = [
            f"{place}.",
            str(call.get("api")),
            str(call.get("model") or ""),
            str(call.get("outcome") or "ok"),
            str(call.get("cause") or ""),
            f"HTTP {call.get('status', 0)}",
            f"{usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out"
            if usage
            else "",
            f"{call.get('request_bytes', 0):,} → {call.get('response_bytes', 0):,} bytes",
            f"{call.get('duration_ms', 0):,} ms",
            f"request {str(call.get('request_sha256') or '')[:12]}",
        ]
        run.console.line(safe("  ".join(word for word in words if word)))
    run.console.line("their exact bytes: add -o json")
