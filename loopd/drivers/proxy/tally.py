"""Reads along while an answer passes: usage, how it ended, errors inside it. Never in the way of a byte."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from loopd.drivers.retry import Fault, fault_of_error, fault_of_status
from loopd.drivers.sse import EventParser, EventTooLarge
from loopd.drivers.wires import WIRES
from loopd.drivers.wires.answer import BadChunk, ErrorChunk
from loopd_protocol.events import Usage

ERROR_BYTES = 4_096


class Tally:
    """Fed with the chunks of one answer in the order in which they went on.

    Args:
        api: protocol of the answer.
        status, headers: of the answer; names in lower case.
        keep_bytes: the body is kept up to this size; of a longer one only the digest.

    Attributes:
        size: bytes so far.
        kept: whether the whole body so far is kept.
    """

    def __init__(self, api: str, status: int, headers: Mapping[str, str], keep_bytes: int) -> None:
        self._status, self._headers = status, headers
        self._keep_bytes = keep_bytes
        self._answer = WIRES[api].answer()
        plain = headers.get("content-encoding", "identity").strip().lower() in {"", "identity"}
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._events = EventParser() if plain and status == 200 and media != "application/json" else None
        self._readable = plain
        self._digest = hashlib.sha256()
        self._body = bytearray()
        self._fault: Fault | None = None
        self.size = 0
        self.kept = True

    def feed(self, chunk: bytes) -> None:
        """Take in a chunk that went on."""
        self._digest.update(chunk)
        self.size += len(chunk)
        if self.kept:
            self._body += chunk
            if len(self._body) > self._keep_bytes:
                self.kept = False
                self._body.clear()
        if self._events is None or self._fault is not None:
            return
        try:
            for event in self._events.feed(chunk):
                if not self._answer.done:
                    self._answer.take(event.data)
        except ErrorChunk as error:
            self._fault = fault_of_error(error.error)
        except (BadChunk, EventTooLarge) as error:
            self._fault = Fault(cause="bad_response", message=str(error)[:300])

    def finish(self) -> None:
        """The answer is complete."""
        if self._fault is not None:
            return
        if self._status != 200:
            text = bytes(self._body[:ERROR_BYTES]).decode("utf-8", "replace")
            self._fault = fault_of_status(self._status, self._headers, text)
        elif self._events is None and self._readable and self.kept:
            try:
                self._answer.take(bytes(self._body).decode("utf-8", "replace"))
            except ErrorChunk as error:
                self._fault = fault_of_error(error.error)
            except BadChunk as error:
                self._fault = Fault(cause="bad_response", message=str(error)[:300])
        elif self._events is not None and self._answer.finish is None:
            self._fault = Fault(
                cause="unreachable", message="the stream ended in the middle of an answer", retryable=True
            )

    @property
    def fault(self) -> Fault | None:
        """What went wrong, or None."""
        return self._fault

    @property
    def complete(self) -> bool:
        """The answer said that nothing more comes."""
        return self._answer.done and self._fault is None

    @property
    def sha256(self) -> str:
        """Of the bytes so far."""
        return self._digest.hexdigest()

    @property
    def body(self) -> bytes | None:
        """The bytes so far, None when they are too many to keep."""
        return bytes(self._body) if self.kept else None

    def usage(self, request_bytes: int) -> Usage | None:
        """Tokens as reported; estimated from the sizes when the model answered without a report."""
        if self._answer.reported is not None:
            return self._answer.reported
        if self._status != 200 or self._fault is not None:
            return None
        spoken = self._answer.size or (0 if self._readable else self.size)
        return Usage(input_tokens=-(-request_bytes // 4), output_tokens=-(-spoken // 4), measured=False)
