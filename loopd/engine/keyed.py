"""The idempotency key of a command on its way to the journal."""

from __future__ import annotations

from typing import Any

import msgspec

from loopd.core.writes import Idempotency


class Keyed(msgspec.Struct, frozen=True):
    """The idempotency key of a command, with the hash of the command."""

    principal: str
    key: str
    command_sha256: str

    def stored(self, result: dict[str, Any]) -> Idempotency:
        """What is written with the command's effect; never a secret."""
        return Idempotency(
            principal=self.principal,
            key=self.key,
            command_sha256=self.command_sha256,
            result=msgspec.json.encode(result),
        )
