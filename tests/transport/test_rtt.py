"""RFC 6298 by hand, and RFC 9002's rule for the receiver's delay."""

from __future__ import annotations

import pytest

from distrlcc.transport.rtt import RttEstimator

MS = 1_000_000


def take(rtt: RttEstimator, ms: int) -> None:
    rtt.smooth(rtt.sample(ms * MS))


def test_by_hand() -> None:
    rtt = RttEstimator(min_rto=0)
    assert rtt.rto == 1000 * MS  # rule 2.1
    take(rtt, 100)
    assert (rtt.smoothed, rtt.variation) == (100 * MS, 50 * MS)  # rule 2.2
    assert rtt.rto == 300 * MS
    take(rtt, 140)
    # Rule 2.3: RTTVAR = 3/4 * 50 + 1/4 * |100 - 140|, SRTT = 7/8 * 100 + 1/8 * 140.
    assert (rtt.smoothed, rtt.variation) == (105 * MS, 47.5 * MS)
    assert rtt.rto == 295 * MS
    take(rtt, 65)
    assert (rtt.smoothed, rtt.variation) == (100 * MS, 45.625 * MS)
    assert rtt.rto == 282.5 * MS
    assert (rtt.minimum, rtt.latest) == (65 * MS, 65 * MS)


def test_the_clock_is_no_finer_than_a_millisecond() -> None:
    rtt = RttEstimator(min_rto=0)
    for _ in range(100):
        take(rtt, 10)
    assert rtt.rto == pytest.approx(11 * MS, abs=1)


def test_back_off_doubles_between_the_limits() -> None:
    rtt = RttEstimator(min_rto=200 * MS, max_rto=1000 * MS)
    take(rtt, 10)
    waits = []
    for _ in range(5):
        waits.append(rtt.rto // MS)
        rtt.backoff += 1
    assert waits == [200, 400, 800, 1000, 1000]
    rtt.backoff = 10**6
    assert rtt.rto == 1000 * MS


def test_the_receivers_delay_is_taken_off_if_the_least_rtt_allows_it() -> None:
    rtt = RttEstimator()
    assert rtt.sample(100 * MS, 30 * MS) == 100 * MS  # nothing is known: it stays in
    assert rtt.sample(150 * MS, 30 * MS) == 120 * MS
    assert rtt.sample(120 * MS, 30 * MS) == 120 * MS  # 90 ms would be below the least
    assert rtt.sample(130 * MS, 30 * MS) == 100 * MS
    assert rtt.sample(90 * MS, 80 * MS) == 90 * MS
    assert rtt.minimum == 90 * MS
