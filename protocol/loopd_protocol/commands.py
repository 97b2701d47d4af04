"""Everything that can be asked of the daemon. Strict: an unknown field is an error.

A mistyped `until_ms` on a suspension would be a safety bug, so nothing is skipped silently.
`MUTATING` commands take an idempotency key in their frame.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.access_commands import (
    ACCESS_SCOPES,
    CHANGED_BY_READERS,
    READ_BY_ADMIN,
    AnyAccessCommand,
)
from loopd_protocol.bounds import AtMs, Count, Key, Label, Name, Reason, Seq, SessionRef, Text
from loopd_protocol.command import DAY_MS as DAY_MS
from loopd_protocol.command import Command as Command
from loopd_protocol.command import Labels as Labels
from loopd_protocol.command import Page
from loopd_protocol.command import Selector as Selector
from loopd_protocol.forensic_commands import (
    FORENSIC_SCOPES,
    READ_BY_EXPORTERS,
    AnchorRecord,
    AnyForensicCommand,
)
from loopd_protocol.holds import HOLD_KINDS  # noqa: F401  (re-exported for clients)
from loopd_protocol.policy import BudgetLimits, PolicyRules
from loopd_protocol.policy_commands import POLICY_SCOPES, AnyPolicyCommand, BudgetSet, SessionSet
from loopd_protocol.retention_commands import (
    RETENTION_SCOPES,
    AnyRetentionCommand,
    RetentionHold,
    RetentionRelease,
)

IDLE_MIN_S, IDLE_MAX_S = 60, 86_400
WAKES_MAX = 8

HoldKind = Literal[
    "UserSuspend",
    "Degeneration",
    "RequestIdle",
    "ContinuationBackoff",
    "Interrupted",
    "ProviderBackoff",
    "AwaitingApproval",
    "Budget",
    "CrashLoop",
    "Maintenance",
]


# -- drivers ----------------------------------------------------------------------------------


class ScriptedSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="scripted",
    forbid_unknown_fields=True,
):
    """Plays a trajectory file. `once`: complete the goal at its end instead of repeating."""

    script: Annotated[str, Meta(min_length=1, max_length=4_096)]
    once: bool = False
    delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


EnvName = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]


class McpServer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """An MCP server whose tools a chat session offers to its model as `NAME__TOOL`.

    Either `command` (started by loopd, stdio) or `url` (streamable HTTP).

    Attributes:
        env: names of variables of the daemon that the server gets besides the usual ones; values are
            never written into a spec.
        token_env: name of the variable whose value is sent as bearer token to `url`.
        allow: tools that are offered; empty for all.
        timeout_s: of one call.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,31}\Z")]
    command: Annotated[str, Meta(min_length=1, max_length=4_096)] | None = None
    args: Annotated[tuple[Annotated[str, Meta(max_length=8_192)], ...], Meta(max_length=100)] = ()
    env: Annotated[tuple[EnvName, ...], Meta(max_length=64)] = ()
    url: Annotated[str, Meta(max_length=2_048, pattern=r"^https?://")] | None = None
    token_env: EnvName | None = None
    allow: Annotated[tuple[Label, ...], Meta(max_length=256)] = ()
    timeout_s: Annotated[int, Meta(ge=1, le=3_600)] = 120


class ChatLimits(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Bounds of one chat session; what is not set is as `[drivers.chat]` of the daemon has it.

    Attributes:
        retries: how often a failed model call is tried again; 0 for never.
        base_ms, cap_ms: wait before the first retry, and the longest one.
        patience_ms: longest `Retry-After` that is waited for inside a turn.
        connect_s, first_s, silence_s: longest wait for a connection, for the first byte of an answer,
            and for the next byte.
        answer_chars: an answer is cut here.
        tool_timeout_s: of a shell command that names none.
        tool_parallel: calls of one answer that run at the same time.
        tool_result_chars: a longer result is cut in the middle before it goes to the model.
        compact_percent: share of the context from which on it is compacted; 0 for never.
    """

    retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    base_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    cap_ms: Annotated[int, Meta(ge=1, le=3_600_000)] | None = None
    patience_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None
    connect_s: Annotated[int, Meta(ge=1, le=600)] | None = None
    first_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    silence_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    answer_chars: Annotated[int, Meta(ge=1_024, le=100_000_000)] | None = None
    tool_timeout_s: Annotated[int, Meta(ge=1, le=3_600)] | None = None
    tool_parallel: Annotated[int, Meta(ge=1, le=64)] | None = None
    tool_result_chars: Annotated[int, Meta(ge=1_024, le=10_000_000)] | None = None
    compact_percent: Annotated[int, Meta(ge=0, le=100)] | None = None


class ChatSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="chat",
    forbid_unknown_fields=True,
):
    """Drives a model endpoint: chat-completions, Anthropic messages, or OpenAI responses.

    Attributes:
        base_url: ends before `/chat/completions`, `/messages` or `/responses`, for example
            `http://127.0.0.1:8080/v1`.
        api_key_env: name of the environment variable with the key, never the key itself.
        temperature_milli: sampling temperature in thousandths, or None for the server's default.
        context_bytes: text that is kept of the conversation; the oldest goes first.
        context_tokens: window of the model, if known; then compaction goes by tokens as reported.
        tools: offer tools to the model at all.
        api: how the endpoint is spoken to.
        mcp_servers: whose tools are offered besides loopd's own; needs `loopd[mcp]`.
        limits: times, retries and sizes that differ from the daemon's.
        proxy: let calls go through the daemon's proxy, which records their exact bytes.
    """

    base_url: Annotated[str, Meta(min_length=1, max_length=2_048, pattern=r"^https?://")]
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    api_key_env: Annotated[str, Meta(max_length=128)] | None = None
    system: Text = ""
    temperature_milli: Annotated[int, Meta(ge=0, le=5_000)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    context_bytes: Annotated[int, Meta(ge=1_024, le=100_000_000)] = 200_000
    tools: bool = True
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    api: Literal["chat-completions", "messages", "responses"] = "chat-completions"
    context_tokens: Annotated[int, Meta(ge=256, le=100_000_000)] | None = None
    mcp_servers: Annotated[tuple[McpServer, ...], Meta(max_length=16)] = ()
    limits: ChatLimits | None = None
    proxy: bool = False


AgentEnv = Annotated[dict[EnvName, Annotated[str, Meta(max_length=8_192)]], Meta(max_length=64)]


class AcpSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="kind",
    tag="acp",
    forbid_unknown_fields=True,
):
    """Hosts an agent that speaks the Agent Client Protocol on standard input and output.

    Either `agent` or `command`. Without `model` and `base_url` the agent uses what its user set up.

    Attributes:
        agent: a kind that loopd knows (`loopctl agents` lists them), or the absolute path of a TOML
            file that describes one.
        command: command line of an agent of no known kind.
        env: variables that the agent gets besides those of its kind.
        model, base_url: the model, and the endpoint that serves it, for example
            `http://127.0.0.1:8080/v1`.
        api_key_env: name of the daemon's environment variable with the key, never the key itself.
        context_tokens: window of the model, for agents that want to be told.
        mode: session mode that is asked for; None for the unattended mode of the agent's kind.
        system: told to the agent before its first prompt.
        context_bytes: text of the conversation that is kept, to tell an agent that lost its own.
        silence_s: an agent that says nothing for so long, while no tool runs, is given up; None for
            what its kind has.
        proxy: let its model calls go through the daemon's proxy, which records their exact bytes and
            knows why one failed; None for whenever there is a `base_url`.
    """

    agent: Annotated[str, Meta(min_length=1, max_length=4_096)] | None = None
    command: Annotated[tuple[Annotated[str, Meta(max_length=8_192)], ...], Meta(max_length=100)] = ()
    env: AgentEnv = {}
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    base_url: Annotated[str, Meta(min_length=1, max_length=2_048, pattern=r"^https?://")] | None = None
    api_key_env: Annotated[str, Meta(max_length=128)] | None = None
    context_tokens: Annotated[int, Meta(ge=256, le=100_000_000)] | None = None
    mode: Label | None = None
    system: Text = ""
    context_bytes: Annotated[int, Meta(ge=1_024, le=100_000_000)] = 50_000
    silence_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    proxy: bool | None = None


DriverSpec = ScriptedSpec | ChatSpec | AcpSpec


# -- sessions ---------------------------------------------------------------------------------


class SessionCreate(Command, frozen=True, kw_only=True, tag="session.create"):
    """→ `{"sid", "name"}`. `set` holds dotted settings: `{"rules.repeated_text.threshold": 5}`.

    Attributes:
        policy: rules about tool calls, in order; without any, `approvals.default` decides.
        budgets: limits of what the session and its children may spend.
        parent: the session whose budgets this one's spending counts into.
    """

    driver: DriverSpec
    name: Name | None = None
    goal: Text | None = None
    workspace: Annotated[str, Meta(max_length=4_096)] | None = None
    labels: Labels = {}
    preset: Literal["published", "hardened"] | None = None
    set: Annotated[dict[Label, Any], Meta(max_length=200)] = {}
    policy: PolicyRules = ()
    budgets: BudgetLimits = ()
    parent: SessionRef | None = None


class SessionGet(Command, frozen=True, kw_only=True, tag="session.get"):
    """→ one session with gate, goal, inbox, counters.

    With `at` (a `seq`) or `at_ms` as it was then, together with `at: {"seq", "ss", "at_ms"}` of its last event.
    """

    sid: SessionRef
    at: Seq | None = None
    at_ms: AtMs | None = None


class SessionList(Command, frozen=True, kw_only=True, tag="session.list"):
    """→ `{"sessions": […]}`; `sort`: `name | stagnation | created`."""

    selector: Selector = Selector()
    sort: Literal["name", "stagnation", "created"] = "created"
    limit: Page = 1_000
    after: Label | None = None


class SessionEnd(Command, frozen=True, kw_only=True, tag="session.end"):
    """Ends a session for good: terminal state `aborted_constraint`, stop reason `operator`."""

    sid: SessionRef
    reason: Reason = ""


class SessionResume(Command, frozen=True, kw_only=True, tag="session.resume"):
    """Goes on with an ended session as a new run, or grants more steps to one that waits for them.

    → `{"sid", "status", "run"}`. The history stays, the counters of the stop rules begin anew.
    """

    sid: SessionRef
    reason: Reason = ""


class SessionReport(Command, frozen=True, kw_only=True, tag="report"):
    """→ `{"report": {…}}`, and with format `md` also `{"text"}`: how a run went, also while it lives."""

    sid: SessionRef
    format: Literal["json", "md"] = "json"


class Send(Command, frozen=True, kw_only=True, tag="send"):
    """→ `{"id", "seq", "held", "by"}` once the envelope is durable, held or not."""

    sid: SessionRef
    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)]
    dedupe: Key | None = None


class Suspend(Command, frozen=True, kw_only=True, tag="suspend"):
    """Closes the gate until `unsuspend`, `until_ms` or a human envelope.

    The answer's `seq` is the proof: no `turn.started` of this session has a higher one before a
    `gate.changed` that removes `UserSuspend`.
    """

    sid: SessionRef
    reason: Reason = ""
    until_ms: AtMs | None = None
    mode: Literal["after_turn", "interrupt", "kill"] = "after_turn"
    quarantine: bool = False


class Unsuspend(Command, frozen=True, kw_only=True, tag="unsuspend"):
    """Removes `UserSuspend` and nothing else."""

    sid: SessionRef
    reason: Reason = ""


class Interrupt(Command, frozen=True, kw_only=True, tag="interrupt"):
    """Cancels the running stream or tool at once; nothing automatic starts for `for_ms`."""

    sid: SessionRef
    for_ms: Annotated[int, Meta(ge=1_000, le=7 * DAY_MS)] | None = None
    suspend: bool = False
    reason: Reason = ""


class GoalSet(Command, frozen=True, kw_only=True, tag="goal.set"):
    """Sets or replaces the goal and makes it active."""

    sid: SessionRef
    text: Annotated[str, Meta(min_length=1, max_length=100_000)]


class GoalPause(Command, frozen=True, kw_only=True, tag="goal.pause"):
    """No continuation until `goal.resume`."""

    sid: SessionRef


class GoalResume(Command, frozen=True, kw_only=True, tag="goal.resume"):
    """Makes a goal active again, ended ones too."""

    sid: SessionRef


class GoalInfeasible(Command, frozen=True, kw_only=True, tag="goal.infeasible"):
    """Declares the goal infeasible, origin `user`."""

    sid: SessionRef
    reason: Reason = ""


class GoalComplete(Command, frozen=True, kw_only=True, tag="goal.complete"):
    """Declares the goal complete."""

    sid: SessionRef
    reason: Reason = ""


class GoalClear(Command, frozen=True, kw_only=True, tag="goal.clear"):
    """Forgets the goal."""

    sid: SessionRef


class GateGet(Command, frozen=True, kw_only=True, tag="gate.get"):
    """→ the gate with all its holds."""

    sid: SessionRef


class GateExtend(Command, frozen=True, kw_only=True, tag="gate.extend"):
    """Moves the deadline of one hold later; never earlier."""

    sid: SessionRef
    kind: HoldKind
    until_ms: AtMs


class GateOpen(Command, frozen=True, kw_only=True, tag="gate.open"):
    """Removes the holds that an operator may remove by hand (or one `kind` of them)."""

    sid: SessionRef
    kind: HoldKind | None = None
    reason: Reason = ""


class Why(Command, frozen=True, kw_only=True, tag="why"):
    """→ `{"sid","gate","holds","held_back"}`: why is this session not running, until when."""

    sid: SessionRef


# -- cron and inbox ---------------------------------------------------------------------------


class CronPut(Command, frozen=True, kw_only=True, tag="cron.put"):
    """Creates or replaces a job. `missed`: what to do with moments that passed while down."""

    sid: SessionRef
    job: Name
    expr: Annotated[str, Meta(min_length=1, max_length=200)]
    text: Annotated[str, Meta(min_length=1, max_length=100_000)]
    tz: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    missed: Literal["skip", "one", "all"] = "one"
    catchup_ms: Annotated[int, Meta(ge=0, le=31 * DAY_MS)] = DAY_MS


class CronPause(Command, frozen=True, kw_only=True, tag="cron.pause"):
    """Due moments are accounted as skipped until `cron.resume`."""

    sid: SessionRef
    job: Name


class CronResume(Command, frozen=True, kw_only=True, tag="cron.resume"):
    """The job fires again from its next due moment on."""

    sid: SessionRef
    job: Name


class CronRemove(Command, frozen=True, kw_only=True, tag="cron.remove"):
    """Forgets a job; its history stays."""

    sid: SessionRef
    job: Name


class CronRun(Command, frozen=True, kw_only=True, tag="cron.run"):
    """Fires a job now, through the gate like any other occurrence."""

    sid: SessionRef
    job: Name


class CronNext(Command, frozen=True, kw_only=True, tag="cron.next"):
    """→ the next `count` due moments of a job, or of an expression that is only tried out."""

    sid: SessionRef | None = None
    job: Name | None = None
    expr: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    tz: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    count: Annotated[int, Meta(ge=1, le=100)] = 5


class CronList(Command, frozen=True, kw_only=True, tag="cron.list"):
    """→ `{"jobs": […]}` of one session or of all."""

    sid: SessionRef | None = None


class CronHistory(Command, frozen=True, kw_only=True, tag="cron.history"):
    """→ `{"occurrences": […]}`, newest first."""

    sid: SessionRef
    job: Name | None = None
    limit: Page = 100


class InboxList(Command, frozen=True, kw_only=True, tag="inbox.list"):
    """→ `{"envelopes": […]}` that wait, in order of delivery."""

    sid: SessionRef


class InboxDrop(Command, frozen=True, kw_only=True, tag="inbox.drop"):
    """Drops one waiting envelope, with an event."""

    sid: SessionRef
    id: Key


# -- history ----------------------------------------------------------------------------------


class HistoryPage(Command, frozen=True, kw_only=True, tag="history.page"):
    """→ `{"events": […], "more": bool}`: events of a session (or of all) in order of `seq`.

    Without `after` the last `limit` events. `kinds` are exact kinds or prefixes such as `gate.*`.
    """

    sid: SessionRef | None = None
    after: Seq | None = None
    before: Seq | None = None
    limit: Page = 100
    kinds: Annotated[tuple[Label, ...], Meta(max_length=64)] = ()


class TurnGet(Command, frozen=True, kw_only=True, tag="turn.get"):
    """→ one turn: trigger, envelopes, steps, outcome; with `prompt` what the model saw.

    `n` None is the last turn; `step` picks the request of a later step of the turn. With `calls`: the model
    calls that went through the proxy, with the exact bytes of request and response as far as they are kept.
    """

    sid: SessionRef
    n: Count | None = None
    prompt: bool = False
    step: Count = 1
    calls: bool = False


class EffectList(Command, frozen=True, kw_only=True, tag="effect.list"):
    """→ `{"effects": […]}`: what tools were begun and how they ended, newest first.

    `state`: `uncertain` (nobody knows, the default), `open` (begun and running), `any`.
    """

    sid: SessionRef | None = None
    state: Literal["uncertain", "open", "any"] = "uncertain"
    limit: Page = 100


class EffectResolve(Command, frozen=True, kw_only=True, tag="effect.resolve"):
    """Settles an uncertain effect: it `happened` or it did not. The model is told with its next turn."""

    sid: SessionRef
    id: Key
    outcome: Literal["happened", "not_happened"]
    note: Reason = ""


class RecoveryGet(Command, frozen=True, kw_only=True, tag="recovery.get"):
    """→ what boots found and did, newest first: `{"boots": [{"boot","at_ms",…}]}`."""

    limit: Page = 1


class Verify(Command, frozen=True, kw_only=True, tag="verify"):
    """→ a proof object: chains, contiguity, projections, anchors; with `suspended_since` contract 3.

    Attributes:
        anchors: signed heads that were kept elsewhere; the log must still contain them.
    """

    sid: SessionRef | None = None
    suspended_since: Seq | None = None
    anchors: Annotated[tuple[AnchorRecord, ...], Meta(max_length=3_000)] = ()


# -- daemon -----------------------------------------------------------------------------------


class AgentsList(Command, frozen=True, kw_only=True, tag="agents.list"):
    """→ `{"agents": […]}`: kinds of hosted agents, whether the daemon finds them, and their versions."""


class DaemonStatus(Command, frozen=True, kw_only=True, tag="daemon.status"):
    """→ version, boot, head, counts of sessions and holds, frozen, draining."""


class DaemonFreeze(Command, frozen=True, kw_only=True, tag="daemon.freeze"):
    """No session admits work until `daemon.unfreeze`. `interrupt` also cuts the running turns."""

    reason: Reason = ""
    interrupt: bool = False


class DaemonUnfreeze(Command, frozen=True, kw_only=True, tag="daemon.unfreeze"):
    """Ends a freeze."""


class DaemonDrain(Command, frozen=True, kw_only=True, tag="daemon.drain"):
    """Takes no new work, lets turns finish within `budget_ms`, interrupts the rest, stops."""

    budget_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | None = None


class DaemonStop(Command, frozen=True, kw_only=True, tag="daemon.stop"):
    """Stops at once and in order: running turns are interrupted with their partial text."""


ForMany = (
    Suspend
    | Unsuspend
    | Interrupt
    | GateOpen
    | GateExtend
    | GoalSet
    | GoalPause
    | GoalResume
    | GoalInfeasible
    | GoalComplete
    | GoalClear
    | Send
    | SessionEnd
    | SessionResume
    | SessionSet
    | BudgetSet
    | CronPut
    | CronPause
    | CronResume
    | CronRemove
    | CronRun
    | RetentionHold
    | RetentionRelease
)
"""What can be done to many sessions at once: every change of a session but those of `ONE_BY_ONE`."""

ONE_BY_ONE: dict[str, str] = {
    "inbox.drop": "names an envelope of one session",
    "effect.resolve": "names an effect of one session, which a person has looked at",
    "approval.answer": "names a question of one session, which a person has read",
    "session.fork": "names a turn of one session, and makes another",
    "import.drop": "takes back one archive that was brought in",
}
"""Changes that speak of one session and are in no `batch`, and why."""


class Batch(Command, frozen=True, kw_only=True, tag="batch"):
    """Carries out one command for each selected session; its own `sid` is replaced.

    → `{"results": [{"sid","ok",…}]}`; with `dry_run` only the sessions it would touch. The refusal of one
    session is told in its result and stops none of the others.
    """

    selector: Selector
    cmd: ForMany
    dry_run: bool = False


AnyCommand = (
    SessionCreate
    | SessionGet
    | SessionList
    | SessionEnd
    | SessionResume
    | SessionReport
    | Send
    | Suspend
    | Unsuspend
    | Interrupt
    | GoalSet
    | GoalPause
    | GoalResume
    | GoalInfeasible
    | GoalComplete
    | GoalClear
    | GateGet
    | GateExtend
    | GateOpen
    | Why
    | CronPut
    | CronPause
    | CronResume
    | CronRemove
    | CronRun
    | CronNext
    | CronList
    | CronHistory
    | InboxList
    | InboxDrop
    | HistoryPage
    | TurnGet
    | EffectList
    | EffectResolve
    | RecoveryGet
    | Verify
    | AgentsList
    | DaemonStatus
    | DaemonFreeze
    | DaemonUnfreeze
    | DaemonDrain
    | DaemonStop
    | Batch
    | AnyAccessCommand
    | AnyPolicyCommand
    | AnyForensicCommand
    | AnyRetentionCommand
)

COMMAND_TYPES: dict[str, type[Command]] = {str(cls.__struct_config__.tag): cls for cls in AnyCommand.__args__}

SCOPES: dict[str, str] = {
    "session.create": "create",
    "session.get": "read",
    "session.list": "read",
    "session.end": "control",
    "session.resume": "control",
    "report": "read.content",
    "send": "send",
    "suspend": "control",
    "unsuspend": "control",
    "interrupt": "control",
    "goal.set": "control",
    "goal.pause": "control",
    "goal.resume": "control",
    "goal.infeasible": "control",
    "goal.complete": "control",
    "goal.clear": "control",
    "gate.get": "read",
    "gate.extend": "control",
    "gate.open": "control",
    "why": "read",
    "cron.put": "cron",
    "cron.pause": "cron",
    "cron.resume": "cron",
    "cron.remove": "cron",
    "cron.run": "cron",
    "cron.next": "read",
    "cron.list": "read",
    "cron.history": "read",
    "inbox.list": "read.content",
    "inbox.drop": "control",
    "history.page": "read.content",
    "turn.get": "read.content",
    "effect.list": "read",
    "effect.resolve": "control",
    "recovery.get": "read",
    "verify": "read",
    "agents.list": "read",
    "daemon.status": "read",
    "daemon.freeze": "admin",
    "daemon.unfreeze": "admin",
    "daemon.drain": "admin",
    "daemon.stop": "admin",
    "batch": "read",
    **ACCESS_SCOPES,
    **POLICY_SCOPES,
    **FORENSIC_SCOPES,
    **RETENTION_SCOPES,
}
"""Scope that a principal needs for a command; a `batch` also needs the scope of its inner command."""

MUTATING: frozenset[str] = frozenset(
    {name for name, scope in SCOPES.items() if scope not in {"read", "read.content"}}
    - READ_BY_ADMIN
    - READ_BY_EXPORTERS
    | CHANGED_BY_READERS
)
