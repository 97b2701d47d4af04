"""The gate alone: the source × hold table cell by cell, and what holds do to each other."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core import gate
from loopd.core.gate import (
    Admit,
    Arrived,
    Cell,
    Changed,
    Close,
    Extend,
    HoldBack,
    Open,
    Tick,
    deadline_of,
    hold_of,
    transition,
)
from loopd.core.state import Gate
from loopd_protocol import holds as hd
from loopd_protocol.errors import Refused
from loopd_protocol.sources import SOURCE_POLICIES, Source
from tests.core.table import BY_HAND, CELLS, EXPECTED, KINDS, NEEDS_LATER, SOURCES, STARTING, STRENGTH, a_hold

NOW = 2_000
LATER = 9


def closed(*kinds: str, **given: object) -> Gate:
    return Gate(holds=tuple(a_hold(kind, **given) for kind in kinds), gen=7)  # type: ignore[arg-type]


def arrived(source: str, preset: str = "published", ss: int = LATER) -> Arrived:
    return Arrived(Source(source), ss, preset)


# -- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "source", "preset"), CELLS)
def test_a_source_meets_at_a_hold_what_the_table_says(kind: str, source: str, preset: str) -> None:
    before = closed(kind)
    after, effects = transition(before, arrived(source, preset), NOW)
    match EXPECTED[kind, source, preset]:
        case "removes":
            assert effects == (Changed(gate=Gate(gen=8), removed=(kind,)), Admit(passing=False))
            assert after == Gate(gen=8)
        case "waits":
            assert effects == (HoldBack((kind,)),)
            assert after == before
        case "passes":
            assert effects == (Admit(passing=True),)
            assert after == before
            held, why = transition(before, arrived(source, preset), NOW, may_pass=False)
            assert (held, why) == (before, (HoldBack((kind,)),))
        case other:
            pytest.fail(f"the expected table says {other!r}")


def test_the_table_is_total_and_has_nothing_else() -> None:
    assert set(gate.MATRIX) == set(KINDS) == set(hd.HOLD_KINDS)
    assert all(set(row) == set(Source) for row in gate.MATRIX.values())
    assert {str(source) for source in Source} == set(SOURCES)
    assert len(EXPECTED) == 10 * 6 * 2
    assert {gate.cell(k, Source(s), p) for k, s, p in CELLS} == set(Cell)


def test_only_automatic_sources_at_a_degeneration_differ_between_presets() -> None:
    differing = {
        (k, s) for k in KINDS for s in SOURCES if EXPECTED[k, s, "published"] != EXPECTED[k, s, "hardened"]
    }
    assert differing == {("Degeneration", s) for s in ("cron", "rewake", "agent", "channel")}


def test_sources_that_begin_a_turn_and_their_rank_are_those_of_the_design() -> None:
    assert {str(s) for s, policy in SOURCE_POLICIES.items() if policy.starts_turn} == set(STARTING)
    by_rank = sorted(STARTING, key=lambda s: SOURCE_POLICIES[Source(s)].rank)
    assert tuple(by_rank) == STRENGTH
    ephemeral = {str(s) for s, policy in SOURCE_POLICIES.items() if policy.ephemeral_in_history}
    assert ephemeral == {"cron", "rewake", "system"}


@pytest.mark.parametrize("source", SOURCES)
def test_an_open_gate_admits_every_source_and_stays_as_it_is(source: str) -> None:
    assert transition(Gate(gen=3), arrived(source), NOW) == (Gate(gen=3), (Admit(),))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("preset", ["published", "hardened"])
@pytest.mark.parametrize("pair", list(combinations(KINDS, 2)), ids="+".join)
def test_two_holds_are_judged_each_by_its_own_cell(source: str, preset: str, pair: tuple[str, str]) -> None:
    before = closed(*pair)
    cells = {kind: EXPECTED[kind, source, preset] for kind in pair}
    if "UserSuspend" in pair and source != "human":
        left = list(pair)  # while a suspension stands nothing else is lifted
    else:
        left = [kind for kind in pair if cells[kind] != "removes"]
    after, effects = transition(before, arrived(source, preset), NOW)
    assert [hold.kind for hold in after.holds] == left
    waits = all(cells[kind] == "passes" for kind in left)
    assert isinstance(effects[-1], Admit) == waits
    if not waits:
        assert set(effects[-1].by) <= set(left)  # type: ignore[union-attr]
        assert {kind for kind in left if cells[kind] != "passes"} <= set(effects[-1].by)  # type: ignore[union-attr]
    assert after.gen == before.gen + (len(left) < 2)


# -- later only, quarantine, suspension ----------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(NEEDS_LATER))
@pytest.mark.parametrize(("ss", "lifts"), [(4, False), (5, False), (6, True)])
def test_a_human_envelope_lifts_it_only_when_accepted_after_it(kind: str, ss: int, lifts: bool) -> None:
    after, effects = transition(closed(kind, since_ss=5), arrived("human", ss=ss), NOW)
    assert after.is_open == lifts
    assert isinstance(effects[-1], Admit) == lifts


@pytest.mark.parametrize("kind", sorted({"Degeneration", "RequestIdle", "ContinuationBackoff"}))
def test_an_envelope_that_waited_lifts_what_was_set_after_it(kind: str) -> None:
    assert transition(closed(kind, since_ss=5), arrived("human", ss=2), NOW)[0].is_open


def test_a_quarantined_suspension_makes_humans_wait_and_lifts_nothing_else() -> None:
    suspended = a_hold("UserSuspend", None, quarantine=True)
    before = Gate(holds=(suspended, a_hold("Degeneration"), a_hold("Interrupted")), gen=2)
    after, effects = transition(before, arrived("human"), NOW)
    assert after == before
    assert effects == (HoldBack(("UserSuspend", "Degeneration", "Interrupted")),)


@pytest.mark.parametrize("source", [s for s in SOURCES if s != "human"])
def test_while_a_suspension_stands_envelopes_lift_nothing(source: str) -> None:
    others = ("Degeneration", "RequestIdle", "ContinuationBackoff")
    before = closed("UserSuspend", *others)
    assert transition(before, arrived(source), NOW) == (before, (HoldBack(("UserSuspend", *others)),))


def test_a_human_envelope_older_than_the_suspension_lifts_nothing_under_it() -> None:
    before = Gate(holds=(a_hold("UserSuspend", since_ss=5), a_hold("RequestIdle", since_ss=3)), gen=2)
    assert transition(before, arrived("human", ss=4), NOW)[0] == before


def test_a_human_envelope_lifts_the_suspension_and_what_it_may_lift_in_one_change() -> None:
    before = closed("UserSuspend", "Degeneration", "Interrupted", "ProviderBackoff")
    after, effects = transition(before, arrived("human"), NOW)
    assert [hold.kind for hold in after.holds] == ["ProviderBackoff"]
    assert effects == (
        Changed(gate=after, removed=("UserSuspend", "Degeneration", "Interrupted")),
        HoldBack(("ProviderBackoff",)),
    )


# -- setting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "UserSuspend"])
@pytest.mark.parametrize(("first", "second", "stands"), [(10, 20, 20), (20, 10, 20), (15, 15, 15)])
def test_the_same_automatic_hold_again_keeps_the_later_deadline_and_says_so(
    kind: str, first: int, second: int, stands: int
) -> None:
    before = Gate(holds=(a_hold(kind, first * 1_000),), gen=1)
    again = a_hold(kind, second * 1_000, since_ss=8, reason="again", since_ms=5_555)
    after, effects = transition(before, Close(again), NOW)
    (hold,) = after.holds
    assert hold.until_ms == stands * 1_000
    assert (hold.since_ms, hold.since_ss, hold.reason) == (1_000, 8, "again")
    assert effects == (Changed(gate=after, added=hold, kept_later=first > second),)


@pytest.mark.parametrize(("first", "second"), [(None, 20_000), (20_000, None), (20_000, 10_000)])
def test_a_second_suspend_replaces_until(first: int | None, second: int | None) -> None:
    before = Gate(holds=(a_hold("UserSuspend", first),), gen=1)
    after, effects = transition(before, Close(a_hold("UserSuspend", second, since_ss=8)), NOW)
    assert [hold.until_ms for hold in after.holds] == [second]
    assert after.holds[0].since_ss == 8
    assert isinstance(effects[0], Changed)
    assert not effects[0].kept_later


@given(st.permutations(KINDS))
def test_holds_of_different_kinds_stand_side_by_side(order: list[str]) -> None:
    current = Gate()
    for kind in order:
        current, _ = transition(current, Close(a_hold(kind)), NOW)
    assert [hold.kind for hold in current.holds] == list(KINDS)
    assert current.gen == len(KINDS)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "UserSuspend"])
def test_an_automatic_hold_without_a_deadline_cannot_be_written_down(kind: str) -> None:
    whole = a_hold(kind)
    fields = {name: getattr(whole, name) for name in whole.__struct_fields__ if name != "until_ms"}
    with pytest.raises(TypeError, match="until_ms"):
        type(whole)(**fields)
    built = msgspec.to_builtins(whole)
    assert msgspec.convert(built, hd.AnyHold) == whole
    for broken in ({k: v for k, v in built.items() if k != "until_ms"}, built | {"until_ms": None}):
        with pytest.raises(msgspec.ValidationError, match="until_ms"):
            msgspec.json.decode(msgspec.json.encode(broken), type=hd.AnyHold)


def test_a_suspension_may_lack_a_deadline() -> None:
    hold = a_hold("UserSuspend", None)
    assert msgspec.json.decode(msgspec.json.encode(hold), type=hd.AnyHold) == hold
    assert deadline_of(Gate(holds=(hold,))) is None


# -- opening and extending -------------------------------------------------------------------------


def test_the_kinds_that_are_opened_by_hand_are_those_of_the_design() -> None:
    assert gate.OPENED_BY_HAND == BY_HAND


def test_open_removes_the_named_kinds_in_one_change_and_nothing_when_none_stands() -> None:
    before = closed("UserSuspend", "Degeneration", "RequestIdle")
    after, effects = transition(before, Open(("RequestIdle", "Degeneration", "CrashLoop")), NOW)
    assert [hold.kind for hold in after.holds] == ["UserSuspend"]
    assert effects == (Changed(gate=after, removed=("Degeneration", "RequestIdle")),)
    assert transition(before, Open(("CrashLoop",)), NOW) == (before, ())


@pytest.mark.parametrize("until", [10_000, 9_999, NOW, 0])
def test_extend_never_moves_a_deadline_earlier(until: int) -> None:
    with pytest.raises(Refused) as refused:
        transition(closed("Degeneration"), Extend("Degeneration", until), NOW)
    assert refused.value.code == "invalid"


def test_extend_moves_one_deadline_later_and_refuses_what_has_none() -> None:
    before = closed("Degeneration", "RequestIdle")
    after, _ = transition(before, Extend("Degeneration", 10_001), NOW)
    assert [hold.until_ms for hold in after.holds] == [10_001, 10_000]
    with pytest.raises(Refused) as refused:
        transition(before, Extend("Budget", 99_999), NOW)
    assert refused.value.code == "conflict"
    with pytest.raises(Refused) as refused:
        transition(Gate(holds=(a_hold("UserSuspend", None),)), Extend("UserSuspend", 99_999), NOW)
    assert refused.value.code == "invalid"


def test_extend_to_a_moment_that_has_passed_is_refused() -> None:
    overdue = closed("Degeneration")
    with pytest.raises(Refused) as refused:
        transition(overdue, Extend("Degeneration", 15_000), 20_000)
    assert refused.value.code == "invalid"


# -- time --------------------------------------------------------------------------------------------


def test_at_its_deadline_a_hold_goes_and_not_a_millisecond_before() -> None:
    before = closed("Degeneration")
    assert transition(before, Tick(), 9_999) == (before, ())
    after, effects = transition(before, Tick(), 10_000)
    assert after.is_open
    assert effects == (Changed(gate=after, removed=("Degeneration",), late_ms=0),)


holds = st.lists(st.sampled_from(KINDS), unique=True, max_size=len(KINDS)).flatmap(
    lambda kinds: st.tuples(
        *(
            st.builds(
                a_hold,
                st.just(kind),
                st.one_of(st.integers(0, 50), st.none() if kind == "UserSuspend" else st.integers(0, 50)),
            )
            for kind in kinds
        )
    )
)


@given(holds, st.integers(0, 60))
def test_a_tick_removes_exactly_what_is_due_earliest_first_each_with_its_lateness(
    standing: tuple[hd.AnyHold, ...], now: int
) -> None:
    before = Gate(holds=standing, gen=4)
    after, effects = transition(before, Tick(), now)
    due = [h for h in standing if h.until_ms is not None and h.until_ms <= now]
    assert set(after.holds) == set(standing) - set(due)
    assert after.gen == 4 + len(due)
    assert [e.late_ms for e in effects] == sorted((now - (h.until_ms or 0) for h in due), reverse=True)  # type: ignore[union-attr]
    assert sorted(k for e in effects for k in e.removed) == sorted(h.kind for h in due)  # type: ignore[union-attr]
    assert all(len(e.removed) == 1 for e in effects)  # type: ignore[union-attr]
    assert transition(after, Tick(), now) == (after, ())
    left = [h.until_ms for h in after.holds if h.until_ms is not None]
    assert deadline_of(after) == min(left, default=None)
    assert all(hold_of(after, h.kind) is None for h in due)


@given(holds, st.sampled_from(SOURCES), st.sampled_from(["published", "hardened"]), st.integers(0, 10))
def test_whatever_arrives_a_gate_is_open_iff_it_has_no_holds_and_input_is_untouched(
    standing: tuple[hd.AnyHold, ...], source: str, preset: str, ss: int
) -> None:
    before = Gate(holds=standing, gen=4)
    frozen = msgspec.json.encode(before)
    after, effects = transition(before, arrived(source, preset, ss), 0)
    assert msgspec.json.encode(before) == frozen
    assert after.is_open == (not after.holds)
    assert set(after.holds) <= set(standing)
    verdict = effects[-1]
    if isinstance(verdict, HoldBack):
        assert verdict.by
        assert set(verdict.by) <= {h.kind for h in after.holds}
    else:
        assert verdict == Admit(passing=bool(after.holds))
    assert len(effects) <= 2
