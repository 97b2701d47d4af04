"""What models cost: a table by name, read from the configuration. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import msgspec

from loopd.core.account import Price, cost_of
from loopd_protocol.events import Usage


class Cost(msgspec.Struct, frozen=True):
    """What a call cost. `priced`: whether the table knows its model; None where there is no table."""

    micro: int = 0
    priced: bool | None = None


class Prices:
    """Prices by model; a name may be a glob such as `gpt-5*`, the longest one that fits holds."""

    def __init__(self, table: Mapping[str, Price] | None = None, currency: str = "USD") -> None:
        self._table = dict(table or {})
        self.currency = currency
        self._globs = [
            (re.compile(".*".join(map(re.escape, name.split("*")))), price)
            for name, price in sorted(self._table.items(), key=lambda item: -len(item[0]))
            if "*" in name
        ]
        self._known = functools.lru_cache(maxsize=1_024)(self._find)

    def __bool__(self) -> bool:
        return bool(self._table)

    def of(self, model: str) -> Price | None:
        """The price of a model, or None when nobody wrote one down."""
        return self._known(model)

    def _find(self, model: str) -> Price | None:
        exact = self._table.get(model)
        if exact is not None:
            return exact
        return next((price for pattern, price in self._globs if pattern.fullmatch(model)), None)

    def cost(self, model: str, usage: Usage | None) -> Cost:
        """What a call of a model cost."""
        if not self._table or usage is None:
            return Cost()
        price = self.of(model)
        return Cost(0, priced=False) if price is None else Cost(cost_of(price, usage), priced=True)
