"""Words for events beside turns and gates: models, agents, tokens, webhooks, archives, storage."""

from __future__ import annotations

from loopd.cli.instants import span, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Body = dict[str, Any]

_SHORT = 120
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _size(amount: Any) -> str:
    size = float(amount or 0)
    for unit in _UNITS:
        if size < 1_024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1_024
    raise AssertionError


def _cut(text: Any) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= _SHORT else f"{words[:_SHORT]}…"


def _names(names: Sequence[Any] | None, otherwise: str) -> str:
    return ", ".join(map(str, names)) if names else otherwise


def _by(body: Body) -> str:
    return f" by {body['by']}" if body.get("by") else ""


def _tokens(body: Body) -> str:
    usage = body.get("usage") or {}
    if not usage:
        return ""
    about = "" if usage.get("measured", True) else "about "
    return f", {about}{usage.get('input_tokens', 0)} + {usage.get('output_tokens', 0)} tokens"


def _called(body: Body) -> str:
    cause = f" ({body['cause']})" if body.get("cause") else ""
    outcome = body.get("outcome", "ok")
    status = f" {body['status']}" if body.get("status") else ""
    sizes = f"{_size(body.get('request_bytes'))} → {_size(body.get('response_bytes'))}"
    model = f" {body['model']}" if body.get("model") else ""
    more = f", {body['repeats']} like it before" if body.get("repeats") else ""
    took = span(body.get("duration_ms", 0))
    return f"{body.get('n')}{model} {outcome}{cause}{status} in {took}: {sizes}{_tokens(body)}{more}"


def _asked(body: Body) -> str:
    return f"{body.get('n')} {body.get('model') or body.get('api')} {_size(body.get('request_bytes'))}"


def _attached(body: Body) -> str:
    count = body.get("sids_count", 0)
    what = "all sessions" if body.get("all") else f"{count} session{'' if count == 1 else 's'}"
    return f"{body.get('id')} watches {what} ({body.get('via')})"


def _detached(body: Body) -> str:
    return f"{body.get('id')} is gone after {span(body.get('lasted_ms', 0))}, had read up to {body.get('cursor', 0)}"


def _compacted(body: Body) -> str:
    messages = f"{body.get('before_messages', 0)} → {body.get('after_messages', 0)} messages"
    sizes = f"{_size(body.get('before_bytes'))} → {_size(body.get('after_bytes'))}"
    return f"{body.get('n')} for its {body.get('reason')}: {messages}, {sizes}"


def _reported(body: Body) -> str:
    if body.get("phase"):
        return f"phase {body['phase']}"
    value = body.get("value_micro")
    return f"{body.get('metric')} is {'unknown' if value is None else format(value / 1_000_000, 'g')}"


def _wake(body: Body) -> str:
    when = f" at {stamp(body['due_ms'])}" if body.get("due_ms") else ""
    return f"{body.get('id')}{when} {body.get('expr') or ''} {_cut(body.get('note'))}".rstrip()


def _recovered(body: Body) -> str:
    ending = "after a clean stop" if body.get("clean") else "after a crash"
    if body.get("boot") == 1:
        ending = "the first start of this journal"
    parts = [
        f"{count} {what}"
        for count, what in (
            (body.get("interrupted_count"), "turns interrupted"),
            (body.get("uncertain_count"), "effects uncertain"),
            (body.get("overdue"), "deadlines overdue"),
            (body.get("leftovers"), "processes ended"),
            (len(body.get("postponed") or ()), "sessions to be taken over yet"),
        )
        if count
    ]
    down = f", down for {span(body['down_ms'])}" if body.get("down_ms") else ""
    return f"boot {body.get('boot')} {ending}{down}: {_names(parts, 'nothing to do')}"


def _storage(body: Body) -> str:
    return f"{body.get('state')}, {_size(body.get('free_bytes'))} free {_cut(body.get('reason'))}".rstrip()


def _token(body: Body) -> str:
    ends = f", until {stamp(body['expires_ms'])}" if body.get("expires_ms") else ""
    return f"{body.get('kid')} for {_names(body.get('scopes'), 'nothing')}{ends}{_by(body)}"


def _made(body: Body) -> str:
    where = f" to {body['origin']}" if body.get("origin") else ""
    return f"{body.get('name')}{where}: {_names(body.get('kinds'), 'all kinds')}, from {body.get('after')}{_by(body)}"


def _named(body: Body) -> str:
    what = body.get("name") or body.get("sid") or body.get("id") or body.get("kid")
    reason = f": {_cut(body['reason'])}" if body.get("reason") else ""
    return f"{what}{_by(body)}{reason}"


def _undelivered(body: Body) -> str:
    return f"{body.get('name')} event {body.get('seq')}: {_cut(body.get('error'))}"


def _missed(body: Body) -> str:
    return f"{body.get('name')} missed {body.get('first')}–{body.get('last')}: deleted before they were delivered"


def _back(body: Body) -> str:
    return f"{body.get('name')} after {span(body.get('down_ms', 0))} and {body.get('tries', 0)} tries"


def _forked(body: Body) -> str:
    return f"from {body.get('parent')} behind its turn {body.get('n')}{_by(body)}"


def _archived(body: Body) -> str:
    span_of = f"{body.get('first_seq')}–{body.get('last_seq')}"
    name = f" as {body['name']}" if body.get("name") else ""
    return f"{body.get('sid')}{name}: {body.get('events')} events ({span_of}), {body.get('redaction')}{_by(body)}"


def _month(body: Body) -> str:
    policy = f" by {body['policy']}" if body.get("policy") else ""
    return f"{body.get('month')}: {body.get('first')}–{body.get('last')}{policy}"


def _swept(body: Body) -> str:
    whose = f" of {body['sid']}" if body.get("sid") else ""
    freed = f", {_size(body['bytes'])}" if body.get("bytes") else ""
    return f"{body.get('count')} {body.get('what')}{whose}{freed} by {body.get('policy')}"


def _anchored(body: Body) -> str:
    return f"seq {body.get('seq')} has hash {str(body.get('h'))[:16]}…, signed by key {body.get('key')}"


def _knocked(body: Body) -> str:
    told = []
    for each in body.get("attempts") or ():
        token = f" with token {each['kid']}" if each.get("kid") else ""
        told.append(
            f"{each.get('count', 1)}× {each.get('source')} at {each.get('door')}{token}: {each.get('code')}"
        )
    if body.get("more"):
        told.append(f"{body['more']}× others")
    return "; ".join(told) or "nobody"


WORDS: dict[str, Callable[[Body], str]] = {
    "access.refused": _knocked,
    "anchor.signed": _anchored,
    "envelope.delivered": lambda body: f"{body.get('id')} into turn {body.get('n')}",
    "driver.remembered": lambda body: f"{body.get('key')} = {_cut(body.get('value'))}",
    "model.asked": _asked,
    "model.called": _called,
    "watcher.attached": _attached,
    "watcher.detached": _detached,
    "context.compacted": _compacted,
    "agent.reported": _reported,
    "wake.set": _wake,
    "wake.cancelled": _named,
    "daemon.recovered": _recovered,
    "storage.changed": _storage,
    "token.created": _token,
    "token.revoked": _named,
    "consumer.created": _made,
    "consumer.deleted": _named,
    "webhook.created": _made,
    "webhook.deleted": _named,
    "webhook.failing": _undelivered,
    "webhook.dead_letter": _undelivered,
    "webhook.gap": _missed,
    "webhook.recovered": _back,
    "session.forked": _forked,
    "session.imported": _archived,
    "export.made": _archived,
    "import.dropped": _named,
    "retention.sealed": _month,
    "retention.deleted": _month,
    "retention.swept": _swept,
    "retention.forgot": lambda body: _names(body.get("sids"), "nothing"),
    "retention.held": _named,
    "retention.released": _named,
}
"""Kind → words, like those of `loopd.cli.lines`."""
