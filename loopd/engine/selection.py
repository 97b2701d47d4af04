"""Which sessions does a selector mean?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from loopd.core.writes import PassiveRow
from loopd.engine.router import Router


def select(
    router: Router, labels: Mapping[str, str], refs: Sequence[str], *, ended: bool
) -> list[PassiveRow]:
    """Rows of the sessions that have all `labels` and, if any are named, are among `refs`.

    Raises:
        Refused: `not_found` for a named session that does not exist.
    """
    chosen = [router.rows[router.resolve(ref)] for ref in refs] if refs else list(router.rows.values())
    return [
        row for row in chosen if (ended or row.status == "live") and (not labels or has_labels(row, labels))
    ]


def has_labels(row: PassiveRow, labels: Mapping[str, str]) -> bool:
    """Whether a session has all of these labels."""
    own: dict[str, str] = msgspec.json.decode(row.labels) if row.labels else {}
    return all(own.get(key) == value for key, value in labels.items())
