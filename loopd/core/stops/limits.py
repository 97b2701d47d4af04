"""Limits: the settings of the stop rules, and the thresholds that a profile makes of them. Pure."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import msgspec

Limit = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A count from which on a rule fires; 0 switches it off."""

YOLO_LEAST = 2
"""Smallest threshold that the profile `yolo` makes: one repetition is none."""


class StopSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a run is over, whoever the agent is.

    Attributes:
        enabled: on under preset `hardened`.
        profile: `strict` takes the numbers as they are, `yolo` halves them (at least 2).
        edge_counts: what caps an edge: passages since the last progress, or over the run's lifetime.
        max_steps: ceiling of steps since the goal was set, a person spoke or a milestone was verified.
        extension_steps, max_extensions: how far and how often the ceiling moves while there is progress.
        extension_window: progress within so many steps moves it.
        park_s: how long the question for more steps waits for its answer, in seconds.
        edge_loop: passages of one edge.
        same_error: failures of one command with one signature and no new state between them.
        same_error_edited: such failures with edits between them; the agent is told, no more.
        noop_edit: edits in a row that changed nothing.
        no_progress_correction, no_progress: steps without progress until it is told, until it is over.
        unresolved_tools: steps in a row whose calls all name tools that do not exist.
        end_on_complete: the agent's claim that its goal is complete ends the run.
        issue_file: path in the workspace of a Markdown file with the issue of an abort; empty: none.
    """

    enabled: bool = False
    profile: Literal["strict", "yolo"] = "strict"
    edge_counts: Literal["since_progress", "lifetime"] = "lifetime"
    max_steps: Limit = 100
    extension_steps: Limit = 50
    max_extensions: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 3
    extension_window: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10
    park_s: Annotated[int, msgspec.Meta(ge=1, le=2_592_000)] = 86_400
    edge_loop: Limit = 8
    same_error: Limit = 3
    same_error_edited: Limit = 6
    noop_edit: Limit = 3
    no_progress_correction: Limit = 25
    no_progress: Limit = 40
    unresolved_tools: Limit = 5
    end_on_complete: bool = False
    issue_file: Annotated[str, msgspec.Meta(max_length=512)] = ""


SCALED = (
    "max_steps",
    "extension_steps",
    "max_extensions",
    "edge_loop",
    "same_error",
    "same_error_edited",
    "noop_edit",
    "no_progress_correction",
    "no_progress",
    "unresolved_tools",
)
"""What a profile scales."""


def scaled(value: int, profile: str) -> int:
    """A threshold under a profile; never above the one under `strict`, and 0 stays off."""
    return value if profile != "yolo" else min(value, max(YOLO_LEAST, value // 2))


@functools.lru_cache(maxsize=256)
def limits_of(settings: StopSettings) -> StopSettings:
    """The thresholds that hold: the settings with the profile's scale applied."""
    if settings.profile == "strict":
        return settings
    changes = {name: scaled(getattr(settings, name), settings.profile) for name in SCALED}
    return msgspec.structs.replace(settings, **changes)


def contradiction(settings: StopSettings) -> tuple[str, str] | None:
    """What could never fire: the name of the setting and a message with the numbers, or None."""
    told, over = settings.no_progress_correction, settings.no_progress
    if told and over and told >= over:
        return (
            "no_progress_correction",
            (
                f"stop.no_progress_correction is {told}; expected less than stop.no_progress, which is {over} "
                "(0 switches it off)"
            ),
        )
    path = settings.issue_file
    if path.startswith(("/", "~")) or ".." in path.split("/") or "\0" in path:
        return "issue_file", f"stop.issue_file is {path!r}; expected a path inside the workspace"
    return None
