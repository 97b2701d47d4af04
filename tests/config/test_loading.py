"""The configuration is read strictly: every mistake is named, with what was probably meant."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.config import Config, ConfigRefused, dotted, environment_name, known_keys, load
from loopd.config.loading import _unknown, is_loopback, nearest

KEYS = known_keys()
WORDS = st.text(string.ascii_lowercase + "_", min_size=1, max_size=12)


def loaded(tmp_path: Path, text: str, **more: Any) -> Config:
    file = tmp_path / "loopd.toml"
    file.write_text(text)
    return load(file, **{"environ": {}, **more})


def problems(tmp_path: Path, text: str, **more: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigRefused) as refused:
        loaded(tmp_path, text, **more)
    return refused.value.problems


def test_nothing_given_is_all_defaults() -> None:
    assert load(environ={}) == Config()


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    text, environ, flags = "[drain]\nbudget_ms = 1\n", {"LOOPD_DRAIN_BUDGET_MS": "2"}, {"drain.budget_ms": 3}
    assert Config().drain.budget_ms == 30_000
    assert loaded(tmp_path, text).drain.budget_ms == 1
    assert loaded(tmp_path, text, environ=environ).drain.budget_ms == 2
    assert loaded(tmp_path, text, environ=environ, flags=flags).drain.budget_ms == 3
    assert loaded(tmp_path, text, environ=environ, flags={"drain.budget_ms": None}).drain.budget_ms == 2


def test_every_key_can_be_set_by_its_variable() -> None:
    values = {
        bool: "true", int: "1", "http.listen": "127.0.0.1:1", "data": "/d", "socket": "/s", "sessions.preset": "published",
        "costs.prices": "{test = {input = 1, output = 2}}", "http.allowed_hosts": "a, b", "sessions.set": "{'rules.repeated_text.threshold' = 7}", "access.uids": "{1000 = ['read']}",
        "access.gids": "{1000 = ['read']}", "log.level": "debug", "log.format": "text", "http.allow_remote": "true",
        "drivers.chat.answer_chars": "2048", "drivers.chat.tool_result_chars": "2048", "http.connections": "8",
        "telemetry.otlp.endpoint": "http://127.0.0.1:4318/v1/traces", "anchors.trusted_keys": "a" * 64,
    }  # fmt: skip
    environ = {environment_name(key): str(values.get(key, "1")) for key in KEYS}
    config = load(environ=environ)
    assert config.http.allowed_hosts == ("a", "b")
    assert config.sessions.set == {"rules.repeated_text.threshold": 7}
    assert config.access.uids == {"1000": ("read",)}
    flat = dotted(msgspec.to_builtins(config))
    assert {key.split(".")[0] for key in flat} == {key.split(".")[0] for key in KEYS}


def test_an_unknown_key_names_the_nearest_with_its_path(tmp_path: Path) -> None:
    assert problems(tmp_path, "[http]\nlistn = 'x'\n") == (
        f"unknown key 'http.listn' in {tmp_path / 'loopd.toml'}; nearest known key is 'http.listen'",
    )
    assert "'drain.budget_ms'" in problems(tmp_path, "[draim]\nbudget_ms = 1\n")[0]
    assert "'http.listen'" in problems(tmp_path, "listen = '127.0.0.1:1'\n")[0]
    assert "'socket'" in problems(tmp_path, "sokcet = 'x'\n")[0]
    assert "'LOOPD_HTTP_LISTEN'" in problems(tmp_path, "", environ={"LOOPD_HTTP_LITSEN": "x"})[0]


def test_a_variable_that_is_not_ours_is_left_alone() -> None:
    assert load(environ={"LOOPD_API_KEY": "x", "LOOPD_CONFIG": "y", "HOME": "/"}) == Config()


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "data = 5\nnope = 1\n[limits]\nconcurrent_turns = 0\nmax_sessions = '9'\n[log]\nlevel = 'loud'\n"
        "[access.uids]\n1000 = ['read', 'fly']\n",
        environ={"LOOPD_METRICS_TOP_K": "many"},
    )
    told = "\n".join(found)
    assert len(found) == 7
    for part in (
        "'nope'",
        "data: expected `str | null`, got `int`; got 5",
        "limits.concurrent_turns: expected `int` >= 1; got 0",
        "limits.max_sessions: expected `int`, got `str`; got '9'",
        "log.level: expected one of 'debug', 'info', 'warning', 'error'; got 'loud'",
        "access.uids: expected one of 'read'",
        "metrics.top_k: expected `int`, got `str`; got 'many' from LOOPD_METRICS_TOP_K",
    ):
        assert part in told, told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http = 5", "http: expected a table such as [http]; got 5"),
        ("[http]\nlisten = '0.0.0.0:80'", "'0.0.0.0' is not a loopback address"),
        ("[http]\nlisten = '127.0.0.1:99999'", "port 99999; expected at most 65535"),
        ("[http]\nlisten = 'here'", "http.listen: expected HOST:PORT; got 'here'"),
        ("[store]\nmax_bytes = -1", "expected `int` >= 0; got -1"),
        ("[metrics]\ntop_k = 101", "expected `int` <= 100; got 101"),
        (f"socket = '/{'x' * 120}'", "path of 121 bytes"),
        ("[access.uids]\nroot = ['read']", "expected a numeric id as key"),
        ("[sessions.set]\nrules.repeated_text.treshold = 5", "threshold"),
        ("[sessions]\npreset = 'soft'", "expected one of 'published', 'hardened'"),
        ("[sessions.set]\ncontinuation.min_gap_ms = -5", "min_gap_ms"),
        ("[drain]\nbudget_ms = 1.5", "expected `int`, got `float`"),
        ("[drain]\nbudget_ms = true", "expected `int`, got `bool`"),
        ("x = ", "is not TOML"),
        ("a = 1\na = 2", "is not TOML"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_numbers(tmp_path: Path, text: str, expected: str) -> None:
    (found,) = problems(tmp_path, text)
    assert expected in found


def test_a_file_that_is_not_there_or_not_readable_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="does not exist") as refused:
        load(tmp_path / "no.toml", environ={})
    assert refused.value.code == "not_found"
    with pytest.raises(ConfigRefused, match="cannot be read"):
        load(tmp_path, environ={})
    (tmp_path / "big.toml").write_text("#" * 1_000_001)
    with pytest.raises(ConfigRefused, match="over 1000000 bytes"):
        load(tmp_path / "big.toml", environ={})
    (tmp_path / "raw.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigRefused, match="is not TOML"):
        load(tmp_path / "raw.toml", environ={})


def test_the_socket_follows_the_data_folder(tmp_path: Path) -> None:
    assert load(environ={}).socket_path is None
    assert load(environ={}, flags={"data": "/d/"}).socket_path == "/d/control.sock"
    assert load(environ={}, flags={"data": "/d", "socket": "/s"}).socket_path == "/s"


def test_session_defaults_may_be_nested_or_dotted(tmp_path: Path) -> None:
    nested = loaded(tmp_path, "[sessions.set.rules.repeated_text]\nthreshold = 9\n")
    flat = loaded(tmp_path, '[sessions.set]\n"rules.repeated_text.threshold" = 9\n')
    assert nested.session_overrides == flat.session_overrides == {"rules.repeated_text.threshold": 9}


@given(
    st.dictionaries(
        WORDS,
        st.recursive(st.integers() | WORDS, lambda inner: st.dictionaries(WORDS, inner, max_size=3)),
        max_size=4,
    )
)
def test_unknown_keys_never_pass_and_never_crash(table: dict[str, Any]) -> None:
    found = list(_unknown(table, "file"))
    strange = [
        key
        for key in table
        if key not in KEYS
        and key
        not in {"http", "store", "drain", "limits", "sessions", "access", "log", "metrics", "recovery"}
    ]
    assert len(found) >= len([key for key in strange if table[key] != {}])
    assert all(nearest(word, list(KEYS)) in KEYS for word in strange)


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("localhost.evil", False)],
)  # fmt: skip
def test_loopback_is_this_machine_only(host: str, *, answer: bool) -> None:
    assert is_loopback(host) is answer


def test_sections_inside_sections_are_read_and_their_mistakes_named(tmp_path: Path) -> None:
    file = tmp_path / "loopd.toml"
    file.write_text(
        "[drivers.chat]\nretries = 7\nerror_prose = ['oh no']\n[drivers.proxy]\nkeep_bodies = false\n"
    )
    config = load(file, environ={"LOOPD_DRIVERS_CHAT_TOOL_PARALLEL": "2"})
    chat = config.drivers.chat
    assert (chat.retries, chat.tool_parallel, chat.error_prose, chat.cap_ms) == (7, 2, ("oh no",), 20_000)
    assert config.drivers.proxy.keep_bodies is False
    file.write_text("[drivers.chat]\nretrys = 7\ntool_parallel = 0\n")
    with pytest.raises(ConfigRefused) as refused:
        load(file, environ={"LOOPD_DRIVERS_CHAT_RETRYS": "1"})
    assert refused.value.problems == (
        f"unknown key 'drivers.chat.retrys' in {file}; nearest known key is 'drivers.chat.retries'",
        (
            "unknown variable 'LOOPD_DRIVERS_CHAT_RETRYS' in the environment; nearest known one is "
            "'LOOPD_DRIVERS_CHAT_RETRIES'"
        ),
        "drivers.chat.tool_parallel: expected `int` >= 1; got 0",
    )
    file.write_text("[drivers]\nchat = 5\n")
    with pytest.raises(
        ConfigRefused, match=r"drivers.chat: expected a table such as \[drivers.chat\]; got 5"
    ):
        load(file, environ={})
