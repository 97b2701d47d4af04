"""When a failed call is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopd.drivers.retry import (
    CAUSES,
    RETRYABLE,
    Fault,
    RetryPolicy,
    fault_of_error,
    fault_of_status,
    retry_after_ms,
)

faults = st.builds(
    Fault,
    cause=st.sampled_from(CAUSES),
    message=st.just("m"),
    retry_after_ms=st.none() | st.integers(0, 10**9),
    retryable=st.booleans(),
)


@given(faults, st.integers(1, 50), st.floats(0, 1, exclude_max=True), st.integers(0, 10))
def test_a_retry_is_bounded_in_number_and_time_and_never_earlier_than_asked(
    fault: Fault, attempt: int, jitter: float, retries: int
) -> None:
    policy = RetryPolicy(retries=retries)
    delay = policy.delay_ms(fault, attempt, jitter)
    if not fault.retryable or attempt > retries:
        assert delay is None
    elif fault.retry_after_ms is None:
        assert delay is not None
        assert policy.base_ms // 2 <= delay <= policy.cap_ms
    elif fault.retry_after_ms > policy.patience_ms:
        assert delay is None
    else:
        assert delay is not None
        assert fault.retry_after_ms <= delay <= policy.patience_ms


def test_the_backoff_doubles_up_to_its_cap() -> None:
    fault = Fault(cause="overloaded", message="", retryable=True)
    policy = RetryPolicy(retries=9, base_ms=100, cap_ms=1_000)
    assert [policy.delay_ms(fault, n, 0.999999) for n in range(1, 7)] == [99, 199, 399, 799, 999, 999]


@pytest.mark.parametrize(
    ("status", "body", "cause", "retryable"),
    [
        (401, "", "auth", False),
        (403, "", "auth", False),
        (400, "bad", "rejected", False),
        (404, "", "rejected", False),
        (413, "", "rejected", False),
        (422, "", "rejected", False),
        (408, "", "server_error", True),
        (429, "slow down", "rate_limited", True),
        (429, '{"error":{"code":"insufficient_quota"}}', "rate_limited", False),
        (500, "", "server_error", True),
        (500, "The model is overloaded", "overloaded", True),
        (502, "", "server_error", True),
        (503, "", "overloaded", True),
        (504, "", "server_error", True),
        (529, "", "overloaded", True),
        (302, "", "bad_response", False),
        (204, "", "bad_response", False),
    ],
)
def test_a_status_is_sorted_by_whose_fault_it_is(status: int, body: str, cause: str, retryable: bool) -> None:
    fault = fault_of_status(status, {}, body)
    assert (fault.cause, fault.retryable) == (cause, retryable)
    assert str(status) in fault.message
    assert cause in CAUSES
    assert not retryable or cause in RETRYABLE


@pytest.mark.parametrize(
    ("error", "cause", "retryable"),
    [
        ({"code": 429, "message": "x"}, "rate_limited", True),
        ({"code": 400, "message": "too long"}, "rejected", False),
        ({"type": "overloaded_error", "message": "x"}, "overloaded", True),
        ({"type": "rate_limit_error"}, "rate_limited", True),
        ({"type": "insufficient_quota"}, "rate_limited", False),
        ("something broke", "server_error", True),
        ({}, "server_error", True),
    ],
)
def test_an_error_inside_a_stream_is_sorted_too(error: object, cause: str, retryable: bool) -> None:
    fault = fault_of_error(error)
    assert (fault.cause, fault.retryable) == (cause, retryable)
    assert fault.message


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7_000),
        ({"retry-after": "1.5"}, 1_500),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30_000),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "9" * 40}, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(headers: dict[str, str], wanted: int | None) -> None:
    assert retry_after_ms(headers) == wanted
