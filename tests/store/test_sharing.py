"""What many sessions have in common is in memory once."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.passive import share
from loopd.core.writes import PassiveRow

MOMENTS = st.integers(1_000, 1_003)
ROWS = st.lists(
    st.builds(
        PassiveRow,
        sid=st.just("ses_a"),
        num=st.just(1),
        name=st.just("a"),
        status=st.just("live"),
        preset=st.just("hardened"),
        goal=st.just(""),
        holds=st.sampled_from(["", "UserSuspend", "UserSuspend,Budget"]),
        until_ms=st.none() | MOMENTS,
        deadline_ms=st.none() | MOMENTS,
        inbox=st.just(0),
        inbox_oldest_ms=st.none(),
        turns=st.just(0),
        steps=st.just(0),
        tokens=st.just(0),
        tokens_barren=st.just(0),
        repeat_streak=st.just(0),
        barren_streak=st.just(0),
        progress_ms=MOMENTS,
        created_ms=MOMENTS,
        last_turn_ms=st.just(0),
        running=st.just(0),
        trigger=st.just(""),
        labels=st.just(""),
    )
)


@given(ROWS)
def test_sharing_changes_no_value_and_leaves_one_object_for_equal_ones(given_rows: list[PassiveRow]) -> None:
    data = msgspec.json.encode(given_rows)
    rows = share(msgspec.json.decode(data, type=list[PassiveRow]))
    assert rows == given_rows
    assert len({id(row.holds) for row in rows}) == len({row.holds for row in rows})
    for row in rows:
        assert (row.until_ms is row.deadline_ms) == (row.until_ms == row.deadline_ms)
        assert (row.progress_ms is row.created_ms) == (row.progress_ms == row.created_ms)
