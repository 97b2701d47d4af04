"""Secrets are recognised and cut out, ordinary text stays; doing it twice changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.core.redaction import redacted

BODY = "A1b2C3d4E5f6G7h8I9j0K1l2"


@pytest.mark.parametrize(
    "secret",
    [
        f"sk-{BODY}",
        f"sk-proj-{BODY}",
        f"ghp_{BODY}",
        f"github_pat_{BODY}",
        f"glpat-{BODY}",
        "xoxb-1234567890-abcdef",
        "AKIAABCDEFGHIJKLMNOP",
        f"AIza{BODY}{BODY}",
        f"hf_{BODY}",
        f"npm_{BODY}",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_a_credential_is_known_by_its_shape(secret: str) -> None:
    assert redacted(f"curl with {secret} then") == "curl with [redacted] then"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer [redacted]"),
        ("postgres://me:hunter2@db/x", "postgres://me:[redacted]@db/x"),
        ("DB_PASSWORD=hunter2 make", "DB_PASSWORD=[redacted] make"),
        ('{"api_key": "hunter22"}', '{"api_key": "[redacted]"}'),
        ("mysql --password hunter2 -u me", "mysql --password [redacted] -u me"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[redacted]"),
    ],
)
def test_a_credential_is_known_by_its_place(text: str, left: str) -> None:
    assert redacted(text) == left


@pytest.mark.parametrize(
    "text",
    ["npm test", "the secret is patience", "tokens: 12", "https://example.org/a?b=c", "16/100. No action."],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.text(max_size=300))
def test_it_is_done_once(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once
