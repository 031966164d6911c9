from __future__ import annotations

import pytest

from distrlcc.transport.pacer import Pacer, pacing_interval

MS = 1_000_000


def test_the_interval_is_rounded_down_and_bounded() -> None:
    assert pacing_interval(3.0) == 333_333_333
    assert pacing_interval(1e-300) == 10**18


def test_without_catching_up_lateness_stays() -> None:
    pacer = Pacer(now=0)
    pacer.sent(1000.0, now=3 * MS)
    assert pacer.next_time == 4 * MS


@pytest.mark.parametrize("lateness_us", [0, 300, 1900])
def test_catching_up_keeps_the_rate(lateness_us: int) -> None:
    pacer = Pacer(catch_up=2 * MS, now=0)
    now = sent = 0
    step = 10 * MS
    while now < 1000 * MS:
        now = max(now, pacer.next_time) + lateness_us * 1000
        if now >= step:  # a policy sets the rate each step
            pacer.restart(8000.0, now=now)
            step += 10 * MS
        while pacer.next_time <= now:
            pacer.sent(8000.0, now=now)
            sent += 1
    assert abs(sent - 8000) <= 8 * 4


def test_a_long_pause_allows_only_a_small_burst() -> None:
    pacer = Pacer(catch_up=2 * MS, now=0)
    sent = 0
    while pacer.next_time <= 1000 * MS:
        pacer.sent(1000.0, now=1000 * MS)
        sent += 1
    assert sent == 3


def test_a_new_rate_counts_from_now() -> None:
    pacer = Pacer(now=0)
    pacer.sent(0.01, now=0)
    assert pacer.next_time == 100_000 * MS
    pacer.restart(100.0, now=5 * MS)
    assert pacer.next_time == 15 * MS
    pacer.restart(1000.0, now=50 * MS)
    assert pacer.next_time == 50 * MS
