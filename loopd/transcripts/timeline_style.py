"""Colours and the legend of the timeline."""

TRIGGERS = ("human", "cron", "rewake", "agent", "channel", "continuation")
OUTCOMES = (
    "completed",
    "empty",
    "idle",
    "stopped_by_rule",
    "step_limit",
    "deadline",
    "model_error",
    "failed",
    "interrupted",
    "running",
)

_LIGHT = {
    "t-human": "#1f7a4d", "t-cron": "#3d6fb6", "t-rewake": "#7a5bb5", "t-agent": "#b0752b", "t-channel": "#2b8c95",
    "t-continuation": "#98a2ae",
    "o-completed": "#8fb3d9", "o-empty": "#d9d5c9", "o-idle": "#c4b5dd", "o-stopped_by_rule": "#d99a1b",
    "o-step_limit": "#c98a4b", "o-deadline": "#b5651d", "o-model_error": "#d9694f", "o-failed": "#c22f2f",
    "o-interrupted": "#8a5a7a", "o-running": "#5fb58a",
}  # fmt: skip
_DARK = {
    "t-human": "#4cc38a", "t-cron": "#6f9fe0", "t-rewake": "#a68be0", "t-agent": "#d9a257", "t-channel": "#55bcc6",
    "t-continuation": "#6b7683",
    "o-completed": "#47698f", "o-empty": "#454a52", "o-idle": "#6d5f8c", "o-stopped_by_rule": "#e5b04a",
    "o-step_limit": "#b07c44", "o-deadline": "#c47a35", "o-model_error": "#c9583f", "o-failed": "#f06a5d",
    "o-interrupted": "#a8749a", "o-running": "#3f9a6e",
}  # fmt: skip
_HOLDS = {
    "UserSuspend": "#3d6fb6", "Degeneration": "#c22f2f", "RequestIdle": "#7a5bb5", "ContinuationBackoff": "#98a2ae",
    "Interrupted": "#8a5a7a", "ProviderBackoff": "#b5651d", "AwaitingApproval": "#2b8c95", "Budget": "#b0752b",
    "CrashLoop": "#a33", "Maintenance": "#667080",
}  # fmt: skip


def _colours(table: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{colour};background:{colour}}}" for name, colour in table.items())


STYLE = (
    _colours(_LIGHT)
    + "".join(f".h-{kind}{{fill:{colour}}}" for kind, colour in _HOLDS.items())
    + f"@media (prefers-color-scheme: dark){{{_colours(_DARK)}}}"
    + """
svg .hold { opacity: .75; }
svg .mark { stroke: var(--rung); stroke-width: 1.5; stroke-dasharray: 3 3; fill: none; }
svg .axis.start { text-anchor: start; }
.chip { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 5px 0 2px; }
.turn { border-top: 1px solid var(--line); margin: 0; padding: 7px 0; }
.turn summary { color: var(--ink); }
.turn:target { outline: 2px solid var(--soft); outline-offset: 4px; }
.dim { color: var(--faint); }
.said, .step { margin: 8px 0 8px 18px; }
.said { border-left: 3px solid var(--human); padding-left: 10px; }
.step { border-left: 3px solid var(--line); padding-left: 10px; }
.call { margin: 6px 0; }
code, pre { font: 12px/1.5 ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
pre { margin: 4px 0; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 420px; overflow-y: auto; }
.pill.failed, .error { color: var(--hard); } .pill.live { color: var(--good); }
.pill.aborted_stuck, .pill.aborted_constraint { color: var(--hard); } .pill.done_success { color: var(--good); }
.found, .error { margin: 6px 0 6px 18px; }
"""
)


def _legend() -> str:
    trigger = "".join(f'<li><span class="chip t-{name}"></span>{name}</li>' for name in TRIGGERS)
    outcome = "".join(
        f'<li><span class="chip o-{name}"></span>{name.replace("_", " ")}</li>' for name in OUTCOMES
    )
    marks = (
        '<li><svg width="12" height="12"><circle class="soft" cx="6" cy="6" r="5"/></svg>finding</li>'
        '<li><svg width="12" height="12"><path class="hard" d="M6 0l6 6-6 6-6-6z"/></svg>finding that closed or ended it</li>'
    )
    return f'<ul class="legend"><li>begun by:</li>{trigger}</ul><ul class="legend"><li>ended:</li>{outcome}{marks}</ul>\n'


LEGEND = _legend()
