"""How much one principal may ask: a bucket of tokens for each, filled at a steady rate."""

from __future__ import annotations

from collections import OrderedDict

from loopd_protocol.errors import Refused

PRINCIPALS = 4_096
"""Beyond so many at once the one that asked longest ago is forgotten; its bucket is full again by then."""


class Rates:
    """Counts commands by principal.

    Args:
        per_s: commands a second for a long time; 0: no limit.
        burst: commands at once after a rest.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(max(burst, 1))
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, principal: str, now_ms: int, cost: float = 1.0) -> None:
        """Count one command. `now_ms` is monotonic.

        Raises:
            Refused: `rate_limited`, with the time after which there is room for it.
        """
        if self._per_s <= 0:
            return
        left, since = self._buckets.pop(principal, (self._burst, now_ms))
        left = min(self._burst, left + max(0, now_ms - since) * self._per_s / 1_000)
        if left < cost:
            self._buckets[principal] = (left, now_ms)
            after_ms = round((cost - left) / self._per_s * 1_000) + 1
            raise Refused(
                "rate_limited",
                f"{principal} asked more than {self._per_s:g} commands a second; the limit at once is "
                f"{self._burst:g}",
                retry_after_ms=after_ms,
            )
        self._buckets[principal] = (left - cost, now_ms)
        if len(self._buckets) > PRINCIPALS:
            self._buckets.popitem(last=False)
