"""Bounds of a chat session, from the daemon's configuration and from the session's own spec."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.drivers.model import Limits
from loopd.drivers.retry import RetryPolicy
from loopd_protocol.commands import ChatLimits


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for a chat session.

    Attributes:
        retry: when a failed call is tried again.
        limits: time and size of one call.
        tool_timeout_s: of a shell command or MCP call that names none.
        tool_parallel: calls of one answer that run at the same time.
        tool_result_chars: a longer result is cut in the middle before it goes to the model.
        compact_percent: share of the context window from which on the context is compacted.
        error_prose: patterns of answers that are errors told in words.
    """

    retry: RetryPolicy = RetryPolicy()
    limits: Limits = Limits()
    tool_timeout_s: int = 120
    tool_parallel: int = 4
    tool_result_chars: int = 32_768
    compact_percent: int = 80
    error_prose: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: dict[str, Any]) -> ChatSettings:
        """From flat fields as the configuration has them, for example `{"retries": 5, "tool_parallel": 2}`."""
        return cls(error_prose=tuple(given.get("error_prose", ()))).changed(given)

    def with_limits(self, own: ChatLimits | None) -> ChatSettings:
        """These settings with what the session's spec sets itself."""
        if own is None:
            return self
        return self.changed({k: v for k, v in msgspec.structs.asdict(own).items() if v is not None})

    def changed(self, given: dict[str, Any]) -> ChatSettings:
        """These settings with other values, by flat names."""
        return msgspec.structs.replace(
            self,
            retry=_changed(self.retry, given),
            limits=_changed(self.limits, given),
            **{name: value for name, value in given.items() if name in self.__struct_fields__},
        )


def _changed(struct: Any, given: dict[str, Any]) -> Any:
    return msgspec.structs.replace(struct, **{n: given[n] for n in struct.__struct_fields__ if n in given})
