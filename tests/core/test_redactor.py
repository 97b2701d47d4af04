"""Redaction profiles: secrets go, the same secret leaves the same mark, nothing takes long."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopd.core.redactor import PIECE_CHARS, PROFILES, Redactor, checked
from loopd.core.secret_shapes import KINDS, OPEN
from loopd_protocol import events as ev
from loopd_protocol.errors import Refused
from loopd_protocol.sources import Source

KEY = b"k" * 32
ALNUM = string.ascii_letters + string.digits
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1_000, 1_000) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def some(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high or low)


SECRETS: dict[str, st.SearchStrategy[str]] = {
    "model": some(ALNUM, 24, 60).map(lambda s: f"sk-proj-{s}"),
    "payment": some(ALNUM, 24).map(lambda s: f"sk_live_{s}"),
    "github": some(ALNUM, 36).map(lambda s: f"ghp_{s}"),
    "github fine": some(ALNUM + "_", 40).map(lambda s: f"github_pat_{s}"),
    "gitlab": some(ALNUM, 20).map(lambda s: f"glpat-{s}"),
    "slack": some(string.digits, 12).map(lambda s: f"xoxb-{s}-abc"),
    "aws": some(string.ascii_uppercase + string.digits, 16).map(lambda s: f"AKIA{s}"),
    "google": some(ALNUM + "-_", 35).map(lambda s: f"AIza{s}"),
    "azure": some(ALNUM + "+/", 86).map(lambda s: f"AccountName=x;AccountKey={s}=="),
    "hub": some(ALNUM, 34).map(lambda s: f"hf_{s}"),
    "registry": some(ALNUM, 36).map(lambda s: f"npm_{s}"),
    "jwt": st.tuples(some(ALNUM, 20), some(ALNUM, 40), some(ALNUM, 43)).map(lambda p: "eyJ" + ".".join(p)),
    "loopd": some(ALNUM, 43).map(lambda s: f"lpd_k1_{s}"),
    "pem": some(ALNUM + "+/\n", 64, 400).map(
        lambda s: f"-----BEGIN RSA PRIVATE KEY-----\n{s}\n-----END RSA PRIVATE KEY-----"
    ),
    "bearer": some(ALNUM, 20, 60).map(lambda s: f"Authorization: Bearer {s}"),
    "url": some(string.ascii_uppercase + string.digits, 8, 20).map(
        lambda s: f"postgres://app:{s}@db.internal:5432/x"
    ),
    "password": some(ALNUM + "!%^*", 6, 20).map(lambda s: f"password={s}"),
    "quoted": some(ALNUM, 6, 20).map(lambda s: f'"api_key": "{s}"'),
    "environment": some(ALNUM, 6, 20).map(lambda s: f"export DB_PASSWORD={s}"),
    "flag": some(ALNUM, 6, 20).map(lambda s: f"tool --token {s} run"),
}


def bare(text: str) -> str:
    """The part of an example that must be gone: its longest run of letters and digits that is random."""
    for mark in ("Bearer ", "://app:", "password=", '"api_key": "', "PASSWORD=", "--token ", "AccountKey="):
        if mark in text:
            rest = text.split(mark, 1)[1]
            return rest.split("@")[0].split('"')[0].split(" ")[0].rstrip("=")
    return text


@pytest.mark.parametrize("kind", SECRETS)
@given(data=st.data())
def test_a_secret_of_a_known_shape_never_comes_through(kind: str, data: st.DataObject) -> None:
    example = data.draw(SECRETS[kind])
    before, after = (
        data.draw(st.sampled_from(["", "see: ", "x=1\n", "('"])),
        data.draw(st.sampled_from(["", " and so on", "\n", "')"])),
    )
    made = Redactor("secrets", key=KEY).text(f"{before}{example}{after}")
    assert bare(example) not in made
    assert OPEN in made
    assert made.startswith(before)


@given(text=st.text(max_size=200), extra=st.sampled_from([""]) | st.one_of(*SECRETS.values()))
def test_doing_it_again_changes_nothing(text: str, extra: str) -> None:
    redactor = Redactor("secrets", key=KEY, patterns=("internal-[0-9]+",))
    once = redactor.text(text + extra)
    assert redactor.text(once) == once


@given(data=st.data(), kind=st.sampled_from(sorted(SECRETS)))
def test_the_same_secret_leaves_the_same_mark_and_another_key_another_one(
    data: st.DataObject, kind: str
) -> None:
    example = data.draw(SECRETS[kind])
    one = Redactor("secrets", key=KEY)
    made = one.text(f"first {example}\nsecond {example}\n")
    assert made.count(OPEN) >= 2
    first, second = made.split("\n")[0], one.text(f"first {example}\n").split("\n")[0]
    if "\n" not in example:
        assert first == second
    assert Redactor("secrets", key=b"other").text(example) != one.text(example)


@given(value=JSON)
def test_values_keep_their_shape(value: Any) -> None:
    made = Redactor("secrets", key=KEY).value(value)
    assert json.dumps(made) is not None
    assert type(made) is type(value)
    if isinstance(value, list):
        assert len(made) == len(value)
    assert Redactor("none").value(value) == value


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("password", False),
        ("DB_PASSWORD", False),
        ("apiKey", False),
        ("GITHUB_TOKEN", False),
        ("client_secret", False),
        ("Authorization", False),
        ("input_tokens", True),
        ("api_key_env", True),
        ("tokenizer", True),
        ("path", True),
        ("secretary", True),
    ],
)
def test_the_value_of_a_telling_name_goes_as_a_whole(name: str, kept: bool) -> None:
    made = Redactor("secrets", key=KEY).value({name: "plain words"})
    assert (made[name] == "plain words") is kept


def test_words_about_secrets_are_no_secrets() -> None:
    redactor = Redactor("secrets", key=KEY)
    for text in (
        "the secret is out",
        "input_tokens: 500, output_tokens: 20",
        "read the password from the vault",
        "a token of appreciation",
        "sha256 343d63113f8f96a12c6515af4269d20e0a4de1361411745adee942b024fd1aa1",
        "git commit 4bdd465 on main",
        "ses_1b68cc2b4 env_1_20 turn 3",
    ):
        assert redactor.text(text) == text


NASTY = {
    "keys": "sk-" * 60_000,
    "letters": "a" * 200_000,
    "pem": "-----BEGIN PRIVATE KEY-----" * 6_000,
    "names": "password" * 20_000,
    "jwt": "eyJaaaaaaaaa." * 15_000,
    "urls": "http://" * 30_000,
    "cookies": "cookie:" * 30_000,
    "flags": "--token " * 25_000,
    "colons": "a:b@" * 50_000,
    "dashes": "-" * 200_000,
    "quotes": "password='" * 20_000,
    "bearer": "bearer " * 30_000,
}


@pytest.mark.parametrize("name", NASTY)
def test_no_text_takes_long(name: str) -> None:
    begun = time.process_time()
    Redactor("secrets", key=KEY).text(NASTY[name])
    assert time.process_time() - begun < 2.5, "200 kB; measured: under 0.5 s each"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(a+)+b", "repeats a repetition"),
        ("(?:x*y)*", "repeats a repetition"),
        ("(a)\\1", "refers back"),
        ("a.*b.*c.*d", "unbounded repetitions"),
        ("(", "pattern"),
        ("x" * 600, "characters"),
    ],
)
def test_a_pattern_that_may_be_slow_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as refused:
        checked(pattern)
    assert refused.value.code == "invalid"


@given(before=st.integers(0, 3 * PIECE_CHARS), behind=st.sampled_from([0, 1, 3_000, 9_000]))
@example(before=PIECE_CHARS - 1, behind=40)
@example(before=PIECE_CHARS // 2 - 1, behind=9_000)
def test_a_pattern_of_the_house_finds_a_secret_wherever_it_stands_in_a_long_line(
    before: int, behind: int
) -> None:
    redactor = Redactor("secrets", key=KEY, patterns=(r"ACME-\d{16}",))
    secret = "ACME-1234567890123456"
    head, tail = ("x " * before)[:before], (" y" * behind)[:behind]
    made = redactor.text(f"{head}{secret}{tail}")
    assert made == f"{head}{redactor.placeholder('custom', secret)}{tail}"
    assert redactor.text(made) == made


def test_patterns_of_the_house_replace_all_or_the_named_part() -> None:
    redactor = Redactor("secrets", key=KEY, patterns=(r"ACME-\d{6}", r"pin (?P<secret>\d{4})"))
    made = redactor.text("card ACME-123456, pin 4711")
    assert "123456" not in made
    assert "4711" not in made
    assert made.startswith("card [redacted:custom:")
    assert "pin [redacted:custom:" in made


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refused, match=", ".join(PROFILES)):
        Redactor("all")


def test_a_placeholder_never_looks_like_a_secret() -> None:
    redactor = Redactor("secrets", key=KEY)
    for kind in KINDS:
        mark = redactor.placeholder(kind, "x")
        assert redactor.text(mark) == mark
        assert redactor.text(f"password {mark} token: {mark}") == f"password {mark} token: {mark}"


def test_bodies_of_events_stay_events() -> None:
    event = ev.EnvelopeAccepted(
        id="env_1_2", source=Source.HUMAN, text="use password=hunter22, please", ephemeral_in_history=False, by="uid:1",
        given={"t": "EnvelopeArrived"},
    )  # fmt: skip
    body = msgspec.json.encode(event)
    made = Redactor("secrets", key=KEY).body(event.kind, body)
    assert made is not None
    again = ev.decode(made)
    assert isinstance(again, ev.EnvelopeAccepted)
    assert "hunter22" not in again.text
    assert again.id == event.id
    bare_one = Redactor("content").body(event.kind, body)
    assert bare_one is not None
    left = ev.decode(bare_one)
    assert isinstance(left, ev.EnvelopeAccepted)
    assert (left.text, left.given, left.source) == ("", None, Source.HUMAN)
    assert Redactor("none").body(event.kind, body) is None
