"""Budgets as people write them: `tokens=2M/5h`, `cost=4.50/1d`, `wall=2h`, `turns=100`."""

from __future__ import annotations

import argparse

from loopd.cli import instants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KINDS = {
    "tokens": "tokens",
    "input": "input_tokens",
    "input_tokens": "input_tokens",
    "output": "output_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
    "wall": "wall",
    "turns": "turns",
}
_FACTORS = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_MICRO = 1_000_000
_EXAMPLES = (
    "expected KIND=AMOUNT or KIND=AMOUNT/WINDOW, for example tokens=2M/5h, cost=4.50/1d, wall=2h, turns=100"
)
_MOST = 2**53 - 1


def limit(text: str) -> dict[str, Any]:
    """A limit as the protocol has it."""
    name, equals, rest = text.partition("=")
    if name not in KINDS or not equals or not rest:
        raise argparse.ArgumentTypeError(f"{text!r} is no budget; {_EXAMPLES}")
    amount, _, window = rest.partition("/")
    found: dict[str, Any] = {"kind": KINDS[name], "limit": _amount(KINDS[name], amount)}
    if "/" in rest:
        found["per_ms"] = _window(window)
    return found


def named(text: str) -> dict[str, Any]:
    """Which limit: `tokens` or `tokens/5h`."""
    name, slash, window = text.partition("/")
    if name not in KINDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no budget; expected one of {', '.join(KINDS)}, with /WINDOW if it has one"
        )
    return {"kind": KINDS[name], **({"per_ms": _window(window)} if slash else {})}


def _amount(kind: str, text: str) -> int:
    try:
        if kind == "wall":
            value = instants.duration_ms(text)
        elif kind == "cost":
            value = _decimal(text, _MICRO)
        else:
            factor = _FACTORS.get(text[-1:], 1)
            value = _decimal(text[:-1] if factor > 1 else text, factor)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of {kind}: {error}; {_EXAMPLES}") from None
    if not 1 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is {value}; expected at least 1 and at most {_MOST}")
    return value


def _decimal(text: str, factor: int) -> int:
    """A decimal number times a factor, exactly."""
    whole, _, part = text.partition(".")
    digits = whole.replace("_", "") + part
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        raise ValueError("expected a number such as 5, 4.50 or 2M")
    scaled, unit = int(digits) * factor, int(10 ** len(part))
    if scaled % unit:
        raise ValueError(f"more exact than one in {factor}")
    return scaled // unit


def _window(text: str) -> int:
    try:
        return instants.duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"window {text!r}: {error}") from None


# -- back into words ----------------------------------------------------------------------------


def shown(kind: str, amount: int, currency: str = "") -> str:
    """An amount for people."""
    if kind == "wall":
        return instants.span(amount)
    if kind == "cost":
        return money(amount, currency)
    return f"{amount:,}"


def money(micro: int, currency: str = "") -> str:
    """Micro-units as a decimal with at least two places, none of them lost."""
    places = f"{micro // _MICRO}.{micro % _MICRO:06d}".rstrip("0")
    whole, _, part = places.partition(".")
    return f"{whole}.{part:0<2} {currency}".rstrip()


def window(per_ms: int | None) -> str:
    """The window of a limit for people."""
    return "in all" if per_ms is None else f"per {instants.span(per_ms)}"
