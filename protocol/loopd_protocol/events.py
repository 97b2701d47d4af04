"""Everything that can have happened: the payloads of the log, one tagged struct for each kind.

The body of an event carries its kind in `k`, so a stored body explains itself. Decoding is
lenient (unknown fields are skipped, unknown kinds are passed on); fields are only ever added,
with a default. Moments are `…_ms` since the Unix epoch, durations `…_ms`, no floats anywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from loopd_protocol.access_events import AnyAccessEvent
from loopd_protocol.bounds import AtMs, Count, Digest, DurationMs, Key, Label, Name, Reason, Signed, Text
from loopd_protocol.event import Event as Event
from loopd_protocol.forensic_events import AnyForensicEvent
from loopd_protocol.holds import AnyHold
from loopd_protocol.policy import BudgetLimit, PolicyRule
from loopd_protocol.policy_events import AnyPolicyEvent
from loopd_protocol.retention_events import AnyRetentionEvent
from loopd_protocol.sources import Source, Trigger

# -- sessions ---------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, kw_only=True, tag="session.created"):
    """A session exists. `driver`, `settings` are as given and validated at creation.

    `num` is the small integer that stands for the session in SQL.
    """

    sid: Key
    num: Count
    name: Name
    driver: dict[str, Any]
    preset: Label
    settings: dict[str, Any] = {}
    labels: dict[str, str] = {}
    workspace: str | None = None
    by: Label = ""
    policy: tuple[PolicyRule, ...] = ()
    budgets: tuple[BudgetLimit, ...] = ()
    parent: Key | None = None


class SessionEnded(Event, frozen=True, kw_only=True, tag="session.ended"):
    """The final event of a run.

    Attributes:
        status: `done_success | done_partial | aborted_stuck | aborted_constraint`.
        stop_reason: the nuance, for example `tool_repetition`, `operator`.
        explanation: at most three sentences.
        secondary: other reasons that were found in the same turn; the status is not theirs.
        remaining: for `done_partial`: what is still to be done.
        run: number of the run that ends, from 1.
    """

    status: Label
    stop_reason: Label
    rule: Label | None = None
    explanation: Reason = ""
    by: Label = ""
    secondary: tuple[Label, ...] = ()
    remaining: tuple[Reason, ...] = ()
    run: Count = 1


class SessionResumed(Event, frozen=True, kw_only=True, tag="session.resumed"):
    """A person resumed an ended session: its run number `run` begins, its history stays."""

    run: Count
    reason: Reason = ""
    by: Label = ""


class IssueWritten(Event, frozen=True, kw_only=True, tag="issue.written"):
    """The one structured record of an aborted run; written in the same commit as its end.

    Secrets that are recognised are redacted in everything the agent or its tools wrote.

    Attributes:
        id: `iss_<num>_<run>`; one for each run.
        status, stop_reason, rule: as in `session.ended`.
        loop: the offending loop or edge, in words.
        evidence: at most 8 short lines a person can check.
        last_reason: what the agent said last.
        last_command, error_signature: the last command, and the signature of the last failure.
        counters: steps, corrections and so on, by name.
        resume: how to go on.
    """

    id: Key
    run: Count
    status: Label
    stop_reason: Label
    rule: Label | None = None
    loop: Reason = ""
    evidence: tuple[Reason, ...] = ()
    last_reason: Reason = ""
    last_command: Reason = ""
    error_signature: Digest = ""
    counters: dict[Label, Count] = {}
    state_fingerprint: Digest = ""
    resume: Reason = ""


# -- envelopes --------------------------------------------------------------------------------


class EnvelopeAccepted(Event, frozen=True, kw_only=True, tag="envelope.accepted"):
    """An input is durable. `text` is what the model will see; `source` was stamped by the daemon.

    Attributes:
        ephemeral_in_history: the source's policy as of now (a snapshot).
        job: cron job or wake id that made it, or None.
        due_ms: when it was due, for cron and rewake.
        dedupe: the sender's own identity for this input, or None.
    """

    id: Key
    source: Source
    text: Text
    ephemeral_in_history: bool
    job: Label | None = None
    due_ms: AtMs | None = None
    dedupe: Key | None = None
    by: Label = ""


class EnvelopeHeld(Event, frozen=True, kw_only=True, tag="envelope.held"):
    """The gate keeps an accepted envelope waiting; `by` names the kinds of hold (or `freeze`)."""

    id: Key
    by: tuple[Label, ...]


class EnvelopeCoalesced(Event, frozen=True, kw_only=True, tag="envelope.coalesced"):
    """`id` waits no more: the newer `into` of the same job stands for `count` of them."""

    id: Key
    into: Key
    job: Label
    count: Count


class EnvelopeDelivered(Event, frozen=True, kw_only=True, tag="envelope.delivered"):
    """A `system` note was shown to the model inside the running turn `n`, before its next step."""

    id: Key
    n: Count


class EnvelopeDropped(Event, frozen=True, kw_only=True, tag="envelope.dropped"):
    """A waiting envelope will not be delivered: `inbox_full`, `operator` or `session_ended`."""

    id: Key
    reason: Label
    by: Label = ""


# -- gate -------------------------------------------------------------------------------------


class GateChanged(Event, frozen=True, kw_only=True, tag="gate.changed"):
    """Holds came or went.

    Attributes:
        gate: `open` or `closed`, after the change.
        cause: `suspend | unsuspend | detection | request_idle | backoff | interrupt | provider |
            approval | budget | crash_loop | maintenance | envelope | deadline | gate_open |
            gate_extend | progress | answer | ended`.
        added: the hold that was set or replaced, in its final form.
        removed: kinds of the holds that went.
        kept_later: the same automatic hold stood already and its later deadline was kept.
        late_ms: for `deadline`: how long after the deadline it was carried out.
        envelope: for `envelope`: which one lifted the hold.
        holds: all holds after the change.
        gen: generation of the gate, +1 for each change.
    """

    gate: Label
    cause: Label
    by: Label
    gen: Count
    holds: tuple[AnyHold, ...] = ()
    added: AnyHold | None = None
    removed: tuple[Label, ...] = ()
    kept_later: bool = False
    late_ms: DurationMs | None = None
    envelope: Key | None = None


# -- detection --------------------------------------------------------------------------------


class DegenerationDetected(Event, frozen=True, kw_only=True, tag="degeneration.detected"):
    """A rule found that the session goes in circles.

    Attributes:
        verdict: `warn | nudge | text_only | close | terminate`.
        level: `soft` or `hard` threshold of the rule.
        score, threshold: what was measured and from where on it counts, in `unit`s.
        window: how many steps or turns were looked at.
        evidence: at most 8 short lines a person can check.
        loop_id: identity of the loop, the same for each rotation of it.
        tokens_since_onset: tokens spent since the loop began, as far as the driver reports them.
        shadow: the rule only watches; no action follows.
    """

    rule: Label
    verdict: Label
    level: Label
    score: Count
    threshold: Count
    unit: Label = "turns"
    window: Count = 0
    evidence: tuple[Reason, ...] = ()
    loop_id: Digest = ""
    config_revision: Digest = ""
    tokens_since_onset: Count = 0
    shadow: bool = False
    relapse: Count = 0


class DetectorNear(Event, frozen=True, kw_only=True, tag="detector.near"):
    """A rule came to three quarters of its soft threshold, and nothing follows yet. Told once for each approach.

    A note: nobody waits for it, and a crash may lose those of the last 50 ms.

    Attributes:
        n: turn, `step`: number of the newest step in the session.
        score, soft, hard, unit: how far, of how much; 0: no such level.
        loop_id: of the loop that is being approached.
    """

    rule: Label
    n: Count
    step: Count = 0
    score: Count
    soft: Count
    hard: Count = 0
    unit: Label = ""
    loop_id: Label = ""


class DetectorFailed(Event, frozen=True, kw_only=True, tag="detector.failed"):
    """A rule raised or took too long; it was skipped for this record and the session goes on."""

    rule: Label
    cause: Label
    error: Reason = ""


# -- turns ------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model call. `measured` is false when they were estimated.

    Attributes:
        scope: what a hosted agent's numbers stand for: `turn` or `last_call`; empty for this call.
    """

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    measured: bool = True
    scope: Label = ""


class Charge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event adds to the account of its session; nothing is charged twice.

    Attributes:
        cost_micro: millionths of the currency of the price table that held when it happened.
        wall_ms: running time since the last charge, without waiting for approvals.
        model: as priced; `priced` is false when the table does not know it.
    """

    input: Count = 0
    output: Count = 0
    cost_micro: Count = 0
    wall_ms: DurationMs = 0
    model: Label = ""
    priced: bool = True


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call of a step with its result.

    Attributes:
        args: the arguments as the model gave them (a JSON object; `{"_raw": …}` when it was none).
        ok: true, false, or None for unknown. A missing result is unknown, never "the same".
        result: the text that goes back to the model; cut for the log when it is over 4 KiB.
        result_blob: SHA-256 of the whole result that goes back to the model, when it was cut here.
        result_sha256, result_bytes: of the tool's whole output, before any truncation.
        masked_sha256: digest of the masked output when a rule asked for it.
        error_class: `infra | schema | denied | tool`, or None.
        repeatable: running it twice is as good as running it once; so says the driver that knows the tool.
    """

    id: Label
    name: Label
    args: Any = None
    ok: bool | None = None
    result: Text | None = None
    result_blob: Digest | None = None
    result_sha256: Digest | None = None
    result_bytes: Count | None = None
    masked_sha256: Digest | None = None
    tool_class: Label = "other"
    exit_code: Signed | None = None
    error_class: Label | None = None
    repeatable: bool = False


class TurnStarted(Event, frozen=True, kw_only=True, tag="turn.started"):
    """Work was admitted; written before the model is called. Consumes the envelopes it names.

    Attributes:
        n: turn number in the session, from 1.
        envelopes: ids in the order of delivery; empty for a continuation.
        prompt: text of the continuation, else None; always ephemeral in history.
        passing: admitted by a `pass` cell although a hold stands.
        manifest: SHA-256 of the manifest blob: what the model saw.
    """

    n: Count
    trigger: Trigger
    envelopes: tuple[Key, ...] = ()
    prompt: Text | None = None
    ephemeral_in_history: bool = False
    passing: bool = False
    gate_gen: Count = 0
    manifest: Digest | None = None


class TurnStep(Event, frozen=True, kw_only=True, tag="turn.step"):
    """One model call of the running turn ended.

    Attributes:
        n: turn; `step`: number in the turn, from 1; `total`: number in the session.
        text: the model's visible text.
        tools_withheld: no tools were offered in this step.
        state_fingerprint: digest of what the agent can change outside, or None for unknown.
        request_sha256: digest of the exact request bytes, or None where a driver has no such bytes.
        compacted: the driver compacted the context before this step.
        skipped_rules: rules that raised or took too long on this step; they did not see it.
        tools_sha256: blob with the tool schemas exactly as they were offered, None for none.
        frames: SHA-256 of the protocol messages of a hosted agent since the last step, both ways.
    """

    n: Count
    step: Count
    total: Count
    text: Text = ""
    text_blob: Digest | None = None
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    finish: Label = "stop"
    tools_withheld: bool = False
    state_fingerprint: Digest | None = None
    request_sha256: Digest | None = None
    phase: Label | None = None
    compacted: bool = False
    skipped_rules: tuple[Label, ...] = ()
    charge: Charge | None = None
    tools_sha256: Digest | None = None
    frames: Digest | None = None


class TurnCompleted(Event, frozen=True, kw_only=True, tag="turn.completed"):
    """A turn ended by itself or by a rule.

    Attributes:
        outcome: `completed | empty | idle | model_error | stopped_by_rule | step_limit | deadline |
            budget | failed`.
        near_misses: by rule, how often it came within three quarters of its soft threshold.
        skipped_rules: rules that raised or took too long on this turn; they did not see its end.
        cause: for `model_error` and `failed`: what it was, for example `rate_limited`,
            `unreachable`, `auth`, `bad_response`, `error_prose`, `context_overflow`.
        frames: SHA-256 of the protocol messages of a hosted agent since the last step, both ways.
    """

    n: Count
    outcome: Label
    steps: Count = 0
    duration_ms: DurationMs = 0
    error: Reason = ""
    near_misses: dict[Label, Count] = {}
    skipped_rules: tuple[Label, ...] = ()
    charge: Charge | None = None
    cause: Label = ""
    frames: Digest | None = None


class TurnInterrupted(Event, frozen=True, kw_only=True, tag="turn.interrupted"):
    """A turn was cut off.

    Attributes:
        cause: `interrupt | suspend | kill | drain | crash | freeze | ended`.
        phase: `model`, `tool` or `unknown`.
        boot: for `crash`: number of the boot that found it.
        partial: text that had been streamed when it was cut.
        frames: SHA-256 of the protocol messages of a hosted agent since the last step, both ways.
    """

    n: Count
    cause: Label
    phase: Label = "unknown"
    partial: Text = ""
    partial_blob: Digest | None = None
    steps: Count = 0
    duration_ms: DurationMs = 0
    boot: Count = 0
    by: Label = ""
    charge: Charge | None = None
    frames: Digest | None = None


class DriverRemembered(Event, frozen=True, kw_only=True, tag="driver.remembered"):
    """A driver keeps a fact over restarts, for example the id that a hosted agent gave its session.

    An empty value forgets the key.
    """

    key: Key
    value: Annotated[str, Meta(max_length=4_096)] = ""


class ProviderRetrying(Event, frozen=True, kw_only=True, tag="provider.retrying"):
    """A model call failed and is tried again by the driver."""

    n: Count
    attempt: Count
    cause: Label
    delay_ms: DurationMs


class ModelAsked(Event, frozen=True, kw_only=True, tag="model.asked"):
    """A model call is about to go through the proxy; `model.called` tells how it ended.

    A note, so a crash loses it only when it comes within 50 ms: a call of a dead daemon that has no
    `model.called` was made at least in part, and what it cost is not known.
    """

    n: Count
    api: Label
    model: Label = ""
    request_sha256: Digest = ""
    request_bytes: Count = 0


class ModelCalled(Event, frozen=True, kw_only=True, tag="model.called"):
    """A model call went through the proxy and ended, in whatever way.

    Attributes:
        n: turn that ran when it left.
        api: `chat-completions | messages | responses`.
        model: as the request names it.
        outcome: `ok`; `error` (the endpoint failed or could not be reached); `cut` (the agent or the
            daemon broke it off); `paused` (the proxy answered itself, nothing was sent).
        cause: for `error` and `paused`: why.
        status: HTTP status that the agent got; 0 when none was sent.
        request_sha256, response_sha256: of the exact bytes of the bodies.
        stored: the bodies are blobs under these digests.
        first_ms: until the first byte of the answer's body.
        usage: as reported, or estimated from the sizes.
        repeats: for `paused`: how many further calls of the turn were answered like this before.
    """

    n: Count
    api: Label
    model: Label = ""
    outcome: Label = "ok"
    cause: Label = ""
    status: Count = 0
    request_sha256: Digest = ""
    request_bytes: Count = 0
    response_sha256: Digest = ""
    response_bytes: Count = 0
    stored: bool = False
    usage: Usage | None = None
    first_ms: DurationMs = 0
    duration_ms: DurationMs = 0
    repeats: Count = 0
    charge: Charge | None = None


class ContextCompacted(Event, frozen=True, kw_only=True, tag="context.compacted"):
    """The context of the running turn was made smaller; later requests are built from what is left.

    First texts of tool results (and of the calls' arguments) of messages before `results_before_ss`
    are shortened to `result_chars`; then messages up to `upto_ss` are replaced by one with `summary`.

    Attributes:
        n: turn; `reason`: `window` (it grew over the configured share) or `overflow` (the endpoint
            refused it as too long).
        before_sha256, after_sha256: digests over the messages before and after.
        usage: of the model call that wrote the summary.
    """

    n: Count
    reason: Label
    before_sha256: Digest
    after_sha256: Digest
    before_messages: Count = 0
    after_messages: Count = 0
    before_bytes: Count = 0
    after_bytes: Count = 0
    results_before_ss: Count = 0
    result_chars: Count = 0
    upto_ss: Count = 0
    summary: Text = ""
    summary_blob: Digest | None = None
    usage: Usage | None = None
    charge: Charge | None = None


# -- goal, phases, progress -------------------------------------------------------------------


class GoalChanged(Event, frozen=True, kw_only=True, tag="goal.changed"):
    """The goal was set or its status changed.

    Attributes:
        status: `active | paused | complete | infeasible | blocked | cleared`.
        origin: `model` or `user`.
    """

    status: Label
    origin: Label
    text: Text | None = None
    note: Reason = ""
    by: Label = ""


class AgentReported(Event, frozen=True, kw_only=True, tag="agent.reported"):
    """The agent named its phase, or the value of a metric in millionths."""

    phase: Label | None = None
    metric: Label | None = None
    value_micro: Signed | None = None


class PhaseClamped(Event, frozen=True, kw_only=True, tag="phase.clamped"):
    """The agent proposed a phase by which an edge would reach its limit; it was refused and told why.

    Attributes:
        phase, proposed: where it is, and where it wanted to go.
        count, limit: passages of the edge since the last progress, and how many end the run.
        lifetime: passages of the edge in this run.
    """

    phase: Label
    proposed: Label
    edge: Label
    count: Count
    limit: Count
    lifetime: Count = 0


class WakeSet(Event, frozen=True, kw_only=True, tag="wake.set"):
    """The agent asked to be woken: once at `due_ms`, or by a cron expression from then on."""

    id: Key
    due_ms: AtMs
    expr: Label | None = None
    note: Reason = ""


class WakeCancelled(Event, frozen=True, kw_only=True, tag="wake.cancelled"):
    """A wake will not come any more."""

    id: Key
    by: Label = ""


# -- cron -------------------------------------------------------------------------------------


class CronChanged(Event, frozen=True, kw_only=True, tag="cron.changed"):
    """A job was put, paused, resumed or removed; `next_ms` is its next due moment or None."""

    job: Name
    change: Label
    expr: Label = ""
    tz: Label = "UTC"
    text: Text = ""
    missed: Label = "one"
    catchup_ms: DurationMs = 0
    next_ms: AtMs | None = None
    by: Label = ""


class CronOccurrence(Event, frozen=True, kw_only=True, tag="cron.occurrence"):
    """What became of one due moment of a job.

    Attributes:
        result: `due` or `held` (not final), or one of the final `fired | late | coalesced | skipped |
            missed`.
        manual: asked for by `cron run`, not due by the expression.
        next_ms: the job's next due moment; 0 when the expression never comes due again; None when
            this event does not move it.
        uncounted: more moments than the daemon enumerates were missed; this row stands for the rest.
    """

    job: Name
    due_ms: AtMs
    result: Label
    envelope: Key | None = None
    late_ms: DurationMs = 0
    manual: bool = False
    uncounted: bool = False
    next_ms: AtMs | None = None


# -- effects ----------------------------------------------------------------------------------


class EffectIntent(Event, frozen=True, kw_only=True, tag="effect.intent"):
    """Written before a tool with outside effects runs.

    Attributes:
        args, args_blob: what the model asked for, should no step tell: the arguments, or where they are long
            the SHA-256 of their JSON in a blob.
        repeatable: as in the call; after a crash it is not uncertain, it may be done again.
    """

    id: Key
    n: Count
    call: Label
    tool: Label
    args_sha256: Digest
    tool_class: Label
    args: Any = None
    args_blob: Digest | None = None
    repeatable: bool = False


class EffectOutcome(Event, frozen=True, kw_only=True, tag="effect.outcome"):
    """Written after the tool ended: `ok`, `error` or `cancelled`.

    When the daemon died in between, the next one writes `interrupted` (repeatable: it may be done again)
    or `uncertain`, which a person settles: a second outcome `happened` or `not_happened`.
    """

    id: Key
    outcome: Label
    by: Label = ""
    note: Reason = ""


# -- daemon -----------------------------------------------------------------------------------


class DaemonStarted(Event, frozen=True, kw_only=True, tag="daemon.started"):
    """A boot is ready to take commands; `recovered` counts the sessions that were mid-turn.

    `log` is what cursors call the log from here on: another name than before when this is the first boot of a
    copy, which goes on otherwise than the original.
    """

    version: Label
    boot: Label
    pid: Count
    epoch: Count
    recovered: Count = 0
    clean: bool = True
    log: Label = ""


class DaemonRecovered(Event, frozen=True, kw_only=True, tag="daemon.recovered"):
    """What a boot found and did; written before the daemon takes commands.

    Attributes:
        boot: number of the boot.
        clean: the last daemon ended in order.
        boots_recent: starts within the last 15 minutes, this one included.
        sessions, ended: how many are live, how many have ended.
        interrupted: sessions that were in the middle of a turn, by sid: number of the turn. At most 100 are
            named here and below; the counts are whole.
        uncertain: effects of which nobody knows whether they happened, by id: the session.
        repeatable: effects that were cut and may simply be done again.
        crash_loops: sessions that are held because the daemon keeps dying in them.
        overdue: deadlines that passed meanwhile; `spread_ms`: over how long they are carried out.
        refused: sessions whose stored state contradicts the journal, by sid: why.
        postponed: sessions that could not be taken over yet, because the journal took nothing, by sid: why. It is
            tried again each second.
        scheduled_wait_until_ms: until when scheduled sources wait because of many starts, or None.
        leftovers: processes of agents that were still running and were ended.
        calls: sessions with model calls under way of which nothing came back: how many; what they cost is unknown.
    """

    boot: Count
    clean: bool
    took_ms: DurationMs = 0
    down_ms: DurationMs | None = None
    boots_recent: Count = 1
    sessions: Count = 0
    ended: Count = 0
    interrupted_count: Count = 0
    interrupted: dict[Key, Count] = {}
    uncertain_count: Count = 0
    uncertain: dict[Key, Key] = {}
    repeatable_count: Count = 0
    crash_loops: tuple[Key, ...] = ()
    overdue: Count = 0
    spread_ms: DurationMs = 0
    refused: dict[Key, Reason] = {}
    scheduled_wait_until_ms: AtMs | None = None
    leftovers: Count = 0
    calls_count: Count = 0
    calls: dict[Key, Count] = {}
    postponed: dict[Key, Reason] = {}


class StorageChanged(Event, frozen=True, kw_only=True, tag="storage.changed"):
    """The disk filled up, or has room again.

    Attributes:
        state: `full` or `writable`.
        free_bytes: room on the file system as it was seen.
        held: sessions that were given, or lost, a `Maintenance` hold. While it is full no session admits work,
            however many hold it.
    """

    state: Label
    free_bytes: Count = 0
    held: Count = 0
    reason: Reason = ""


class DaemonStopped(Event, frozen=True, kw_only=True, tag="daemon.stopped"):
    """The daemon ended in order."""

    reason: Label
    interrupted: Count = 0


class DaemonFrozen(Event, frozen=True, kw_only=True, tag="daemon.frozen"):
    """No session admits work until `daemon.unfrozen`; survives restarts."""

    by: Label
    reason: Reason = ""


class DaemonUnfrozen(Event, frozen=True, kw_only=True, tag="daemon.unfrozen"):
    """Sessions admit work again as their own gates say."""

    by: Label


class CommandDenied(Event, frozen=True, kw_only=True, tag="command.denied"):
    """Somebody asked for what their scopes do not allow."""

    principal: Label
    cmd: Label
    code: Label


AnyEvent = (
    SessionCreated
    | SessionEnded
    | SessionResumed
    | IssueWritten
    | EnvelopeAccepted
    | EnvelopeHeld
    | EnvelopeCoalesced
    | EnvelopeDelivered
    | EnvelopeDropped
    | GateChanged
    | DegenerationDetected
    | DetectorNear
    | DetectorFailed
    | TurnStarted
    | TurnStep
    | TurnCompleted
    | TurnInterrupted
    | DriverRemembered
    | ProviderRetrying
    | ModelAsked
    | ModelCalled
    | ContextCompacted
    | GoalChanged
    | AgentReported
    | PhaseClamped
    | WakeSet
    | WakeCancelled
    | CronChanged
    | CronOccurrence
    | EffectIntent
    | EffectOutcome
    | DaemonStarted
    | DaemonRecovered
    | StorageChanged
    | DaemonStopped
    | DaemonFrozen
    | DaemonUnfrozen
    | CommandDenied
    | AnyAccessEvent
    | AnyPolicyEvent
    | AnyForensicEvent
    | AnyRetentionEvent
)

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in AnyEvent.__args__}
"""Kind → payload type. A kind that is not here is passed on undecoded."""

EVENT_VERSION = 1
"""`kv` of all kinds above; a kind whose meaning changes gets its own, higher number."""

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(AnyEvent)


def decode(body: bytes) -> Event:
    """Decode the stored body of an event of a known kind; fields that are not known are skipped.

    Raises:
        msgspec.ValidationError: the kind is not known here, or the body does not fit it.
    """
    return _DECODER.decode(body)
