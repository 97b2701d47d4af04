"""What can be configured: one struct for each section of the file, documented where it is declared.

The reference (`docs/reference/configuration.md`) is generated from these declarations.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loopd_protocol.bounds import MAX_INT

Port = Annotated[
    str,
    Meta(
        pattern=r"^((\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}|unix:/.{1,99})\Z",
        description="`HOST:PORT`; an IPv6 host stands in brackets; port 0 takes any free one. `unix:/PATH` is a socket.",
    ),
]
Path = Annotated[str, Meta(min_length=1, max_length=4_096)]
Scope = Literal[
    "read",
    "read.content",
    "send",
    "control",
    "create",
    "cron",
    "approve",
    "export",
    "metrics",
    "admin",
]
Scopes = Annotated[tuple[Scope, ...], Meta(max_length=16)]
UserId = Annotated[str, Meta(pattern=r"^[0-9]{1,10}\Z")]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all sections."""


class Http(Section, frozen=True, kw_only=True):
    """The HTTP listener: health pages and metrics, and the API and the page once a token exists.

    Off until `listen` is set.
    """

    listen: Annotated[
        Port | None,
        Meta(
            description="Address of the listener, for example `127.0.0.1:9464` or `unix:/run/loopd/http.sock`."
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None, Meta(description="PEM file of a certificate with its chain; then HTTPS is spoken.")
    ] = None
    tls_key: Annotated[Path | None, Meta(description="PEM file of its key.")] = None
    metrics_auth: Annotated[
        bool,
        Meta(
            description="`/metrics` needs a token with scope `metrics` also on a loopback address; elsewhere it always does."
        ),
    ] = False
    connections: Annotated[
        int, Meta(ge=8, le=100_000, description="Open HTTP connections, event streams among them.")
    ] = 4_096
    allow_remote: Annotated[
        bool, Meta(description="Permit a `listen` address that is not loopback; refused otherwise.")
    ] = False
    allowed_hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...],
        Meta(
            max_length=64,
            description="Host headers that are answered, besides the loopback names and `listen`.",
        ),
    ] = ()


class Store(Section, frozen=True, kw_only=True):
    """The journal on disk."""

    max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_INT,
            description="Size of the database in bytes from which on writes answer `storage_full`; 0: the disk decides.",
        ),
    ] = 0
    ballast_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Size of a file that is deleted when the disk is full, so that the daemon can still write why it stops; 0: none.",
        ),
    ] = 64 << 20


class Drain(Section, frozen=True, kw_only=True):
    """What `SIGTERM` and `loopctl drain` do."""

    budget_ms: Annotated[
        int,
        Meta(
            ge=0, le=86_400_000, description="How long running turns may finish before they are interrupted."
        ),
    ] = 30_000


class Limits(Section, frozen=True, kw_only=True):
    """Ends of everything that could grow."""

    max_sessions: Annotated[
        int, Meta(ge=1, le=10_000_000, description="Live sessions; one more is refused with `overloaded`.")
    ] = 100_000
    concurrent_turns: Annotated[
        int, Meta(ge=1, le=100_000, description="Turns that run at the same time; others wait for a place.")
    ] = 64
    idle_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="What sessions at rest may keep in memory together, their contexts above all. Beyond it the "
            "longest unused leave, and are read again from the journal when there is work for them; an agent "
            "that loopd hosts is ended with that, and started again.",
        ),
    ] = 16 << 20
    connections: Annotated[
        int, Meta(ge=1, le=100_000, description="Open connections on the control socket.")
    ] = 1_024
    inflight: Annotated[int, Meta(ge=1, le=10_000, description="Unanswered commands of one connection.")] = 64
    subscriptions: Annotated[int, Meta(ge=1, le=10_000, description="Subscriptions of one connection.")] = 32


class Sessions(Section, frozen=True, kw_only=True):
    """Defaults for sessions that are created from now on; `loopctl new` overrides them."""

    preset: Annotated[
        Literal["published", "hardened"], Meta(description="Rule preset of a session that names none.")
    ] = "hardened"
    set: Annotated[
        dict[str, Any],
        Meta(
            max_length=200,
            description="Session settings, nested or dotted: `rules.repeated_text.threshold = 5`.",
        ),
    ] = {}


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model costs, in millionths of the currency for a million tokens: 3 USD are `3_000_000`.

    `cached` is for input tokens that the endpoint had kept; without it they cost what others do.
    """

    input: Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
    output: Annotated[int, Meta(ge=0, le=1_000_000_000_000)]
    cached: Annotated[int, Meta(ge=0, le=1_000_000_000_000)] | None = None


class Costs(Section, frozen=True, kw_only=True):
    """What models cost, for budgets of kind `cost`. A model that is not named here is named in a warning."""

    currency: Annotated[
        str, Meta(min_length=1, max_length=8, description="Name of the currency; only shown.")
    ] = "USD"
    prices: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=200)], ModelPrice],
        Meta(
            max_length=1_000,
            description="Model → price; a name may be a glob such as `gpt-5*`. "
            "`{input = 3_000_000, output = 15_000_000, cached = 300_000}` are 3, 15 and 0.30 for a million tokens.",
        ),
    ] = {}


class Access(Section, frozen=True, kw_only=True):
    """Who may do what on the control socket, by user and group id of the peer (SO_PEERCRED).

    The daemon's own user and root always have all scopes. Nobody else has any unless named here.
    """

    uids: Annotated[dict[UserId, Scopes], Meta(max_length=1_000, description="User id → scopes.")] = {}
    gids: Annotated[
        dict[UserId, Scopes], Meta(max_length=1_000, description="Primary group id → scopes.")
    ] = {}
    rate_per_s: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Commands a second that one token may ask for a long time; 0: no limit. Local users are not counted.",
        ),
    ] = 50
    burst: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Commands that one token may ask at once after a rest.")
    ] = 200


class Agents(Section, frozen=True, kw_only=True):
    """Whom agents and their tools run as, and where they reach the daemon."""

    user: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)] | None,
        Meta(
            description="Name or number of the user that agents and their tools run as; needs a daemon that is root. Without it there is no isolation.",
        ),
    ] = None
    socket: Annotated[
        Path | None,
        Meta(
            description="Path of the socket of hosted agents; default `DATA/agent.sock`, or one below `/run` that `user` can reach."
        ),
    ] = None


class Log(Section, frozen=True, kw_only=True):
    """Log lines on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severity that is written.")
    ] = "info"
    format: Annotated[
        Literal["json", "text"], Meta(description="`json`: one object per line; `text`: for people.")
    ] = "json"


class MetricsSection(Section, frozen=True, kw_only=True):
    """What `/metrics` shows."""

    top_k: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Name the worst sessions by age of progress and by streak; 0: no session is ever a label.",
        ),
    ] = 0


class Recovery(Section, frozen=True, kw_only=True):
    """What happens at boot."""

    crash_loop_boots: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="A session that was mid-turn in this many of the last 10 boots gets a `CrashLoop` hold; 0: never.",
        ),
    ] = 3
    unstable_boots: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="After so many starts within 15 minutes, the last one behind a crash, scheduled sources (cron, wake-ups) wait; 0: never.",
        ),
    ] = 3
    unstable_wait_s: Annotated[
        int, Meta(ge=1, le=86_400, description="How long scheduled sources wait then.")
    ] = 300


class Retention(Section, frozen=True, kw_only=True):
    """How long the journal keeps what happened. A session under legal hold keeps everything."""

    content_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="Age in days at which messages, prompts and tool output are deleted; digests and metadata stay. A live session keeps its present context. 0: never.",
        ),
    ] = 30
    metadata_days: Annotated[
        int,
        Meta(
            ge=0,
            le=36_500,
            description="Age in days at which whole sealed months are deleted; a link stays, so that the rest still verifies. 0: never.",
        ),
    ] = 400
    every_s: Annotated[int, Meta(ge=1, le=86_400, description="How often it is looked for what is due.")] = (
        3_600
    )


class Redaction(Section, frozen=True, kw_only=True):
    """What an export with profile `secrets` replaces, beside the shapes of common credentials."""

    patterns: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=500)], ...],
        Meta(
            max_length=50,
            description="Regular expressions of this house's own secrets; of a group named `secret` only that part is replaced.",
        ),
    ] = ()


class Anchors(Section, frozen=True, kw_only=True):
    """Signed heads of the log. What happened since the last one that left the machine can be rewritten unseen."""

    enabled: Annotated[
        bool, Meta(description="Sign heads with `DATA/anchor.key`, which is made at the first start.")
    ] = True
    every_s: Annotated[
        int, Meta(ge=1, le=86_400, description="Longest time that an event waits for an anchor.")
    ] = 60
    every_events: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Most events that wait for an anchor.")
    ] = 1_000
    trusted_keys: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")], ...],
        Meta(max_length=100, description="Public keys (hex) of other daemons whose archives are trusted."),
    ] = ()


class Otlp(Section, frozen=True, kw_only=True):
    """Spans of sessions, turns, model calls and tools for a collector; needs `pip install loopd[otel]`."""

    endpoint: Annotated[
        Annotated[str, Meta(max_length=2_048, pattern=r"^https?://")] | None,
        Meta(
            description="Where spans go, for example `http://127.0.0.1:4318/v1/traces`. Off until it is set."
        ),
    ] = None
    headers_env: Annotated[
        Annotated[str, Meta(max_length=128)] | None,
        Meta(
            description="Name of an environment variable with headers, `name=value,name=value`: keys stay out of files."
        ),
    ] = None
    content: Annotated[
        bool,
        Meta(
            description="Messages, arguments and results too, redacted by profile `secrets`; else metadata only."
        ),
    ] = False


class Telemetry(Section, frozen=True, kw_only=True):
    """What other systems are told."""

    otlp: Otlp = Otlp()


class ChatDefaults(Section, frozen=True, kw_only=True):
    """Bounds of chat sessions; a session's own `limits` change them for itself."""

    retries: Annotated[
        int, Meta(ge=0, le=100, description="How often a failed model call is tried again; 0: never.")
    ] = 3
    base_ms: Annotated[
        int, Meta(ge=1, le=600_000, description="Wait before the first retry; it doubles with each.")
    ] = 500
    cap_ms: Annotated[int, Meta(ge=1, le=3_600_000, description="Longest wait before a retry.")] = 20_000
    patience_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="Longest `Retry-After` that is waited for inside a turn; a longer one ends it, and the gate waits.",
        ),
    ] = 30_000
    connect_s: Annotated[int, Meta(ge=1, le=600, description="Longest wait for a connection.")] = 10
    first_s: Annotated[
        int, Meta(ge=1, le=86_400, description="Longest wait for the first byte of an answer.")
    ] = 600
    silence_s: Annotated[
        int, Meta(ge=1, le=86_400, description="Longest wait for the next byte of an answer.")
    ] = 120
    answer_chars: Annotated[
        int, Meta(ge=1_024, le=100_000_000, description="A longer answer is cut off.")
    ] = 524_288
    tool_timeout_s: Annotated[
        int, Meta(ge=1, le=3_600, description="Time of a shell command that names none.")
    ] = 120
    tool_parallel: Annotated[
        int, Meta(ge=1, le=64, description="Tool calls of one answer that run at the same time.")
    ] = 4
    tool_result_chars: Annotated[
        int,
        Meta(
            ge=1_024,
            le=10_000_000,
            description="A longer tool result is cut in the middle before it goes to the model; digests are of the whole. Of a shell command never more than 32,768 are kept.",
        ),
    ] = 32_768
    compact_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Share of the context window from which on the context is compacted; 0: only when the endpoint refuses it.",
        ),
    ] = 80
    error_prose: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=500)], ...],
        Meta(
            max_length=100,
            description="Regular expressions of answers that are errors told in words, beside the ones that loopd knows; matched at the beginning of answers of at most 600 characters.",
        ),
    ] = ()


class ProxyDefaults(Section, frozen=True, kw_only=True):
    """The loopback model proxy; see "Use the model proxy" among the how-tos."""

    keep_bodies: Annotated[
        bool,
        Meta(
            description="Keep the exact bytes of requests and answers in the journal; else only their digests."
        ),
    ] = True
    first_s: Annotated[
        int, Meta(ge=1, le=86_400, description="Longest wait for an endpoint's answer to begin.")
    ] = 600
    silence_s: Annotated[
        int, Meta(ge=1, le=86_400, description="Longest wait for the next byte of an answer.")
    ] = 300


class Drivers(Section, frozen=True, kw_only=True):
    """What holds for all sessions of a driver."""

    chat: ChatDefaults = ChatDefaults()
    proxy: ProxyDefaults = ProxyDefaults()


class Testing(Section, frozen=True, kw_only=True):
    """Faults on purpose, for tests of loopd itself. Everything here is refused unless `enabled`."""

    enabled: Annotated[bool, Meta(description="Permit the keys below. Never set it where work is done.")] = (
        False
    )
    failpoints: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Points at which to die, stop or fail: `commit.written/effect.intent:kill@3`; see `loopd/failpoints.py`.",
        ),
    ] = ""
    clock_offset_file: Annotated[
        Path | None,
        Meta(description="A file with milliseconds that are added to the wall clock, read each time."),
    ] = None


class Config(Section, frozen=True, kw_only=True):
    """Everything that `loopd serve` reads. A flag beats the environment, that beats the file, that beats the default."""

    data: Annotated[
        Path | None, Meta(description="Folder of the journal, the lock and the default socket.")
    ] = None
    socket: Annotated[
        Path | None,
        Meta(description="Path of the control socket, at most 100 bytes; default `DATA/control.sock`."),
    ] = None
    http: Http = Http()
    store: Store = Store()
    drain: Drain = Drain()
    redaction: Redaction = Redaction()
    anchors: Anchors = Anchors()
    telemetry: Telemetry = Telemetry()
    limits: Limits = Limits()
    sessions: Sessions = Sessions()
    costs: Costs = Costs()
    access: Access = Access()
    agents: Agents = Agents()
    drivers: Drivers = Drivers()
    log: Log = Log()
    metrics: MetricsSection = MetricsSection()
    recovery: Recovery = Recovery()
    retention: Retention = Retention()
    testing: Testing = Testing()

    @property
    def socket_path(self) -> str | None:
        """Where the control socket is: `socket`, else `control.sock` in `data`, else None."""
        if self.socket is not None:
            return self.socket
        return None if self.data is None else f"{self.data.rstrip('/') or '/'}/control.sock"

    @property
    def session_overrides(self) -> dict[str, Any]:
        """`sessions.set` as dotted keys, the form that `session.create` takes."""
        return dotted(self.sessions.set)


def dotted(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables: `{"rules": {"x": 1}}` → `{"rules.x": 1}`. Lists are values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(dotted(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
