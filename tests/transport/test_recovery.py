"""RTTs by hand, delivery rates, and what is outstanding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport.recovery import (
    DeliveryRate,
    FoundLost,
    Outstanding,
    Reordering,
    RttEstimator,
    pacing_interval,
)

MS = 1_000_000


def take(rtt: RttEstimator, ms: int, times: int = 1) -> RttEstimator:
    for _ in range(times):
        rtt.smooth(rtt.sample(ms * MS))
    return rtt


def test_rtts_by_hand() -> None:
    rtt = RttEstimator()
    assert rtt.rto == 1000 * MS  # rule 2.1
    take(rtt, 100)
    assert (rtt.smoothed, rtt.variation) == (100 * MS, 50 * MS)  # rule 2.2
    assert rtt.rto == 300 * MS
    take(rtt, 140)
    # Rule 2.3: RTTVAR = 3/4 * 50 + 1/4 * |100 - 140|, SRTT = 7/8 * 100 + 1/8 * 140.
    assert (rtt.smoothed, rtt.variation) == (105 * MS, 47.5 * MS)
    assert rtt.rto == 305 * MS  # at least 200 ms beyond the smoothed RTT, as in Linux
    take(rtt, 65)
    assert (rtt.smoothed, rtt.variation) == (100 * MS, 45.625 * MS)
    assert rtt.rto == 300 * MS
    assert (rtt.minimum, rtt.latest) == (65 * MS, 65 * MS)


def test_a_handshake_is_the_first_sample_and_no_least_rtt() -> None:
    rtt = RttEstimator(2000 * MS)
    assert (rtt.rto, rtt.minimum, rtt.latest) == (6000 * MS, 0, 0)
    take(rtt, 100)
    assert (rtt.smoothed, rtt.minimum) == (1762.5 * MS, 100 * MS)


def test_back_off_doubles_between_the_limits() -> None:
    rtt, waits = take(RttEstimator(), 10), []
    for _ in range(5):
        waits.append(rtt.rto // MS)
        rtt.backoff += 1
    assert waits == [210, 420, 840, 1680, 3360]
    rtt.backoff = 10**6
    assert rtt.rto == 60_000 * MS
    assert take(RttEstimator(), 300, times=100).rto == pytest.approx(500 * MS, abs=1)
    # A path longer than the longest back-off has a timeout beyond its RTT.
    rtt = RttEstimator(70_000 * MS)
    rtt.backoff = 3
    assert rtt.rto == 210_000 * MS


def test_what_was_found_lost_is_remembered_for_two_seconds() -> None:
    lost = FoundLost()
    for number, now in ((3, 0), (4, 0), (9, 1500), (12, 1900)):
        lost.add(number, (number, 0, 0, 0), now=now * MS)
    assert lost.take(4, 9, now=1900 * MS) == [(4, (4, 0, 0, 0))]
    assert lost.take(0, 10, now=2100 * MS) == [(9, (9, 0, 0, 0))]  # 3 is of too long ago
    assert lost.take(0, 99, now=3900 * MS) == [(12, (12, 0, 0, 0))]
    for number in range(100):
        lost.add(number, (0, 0, 0, 0), now=number * 100 * MS)
    assert lost.lowest(500, now=9900 * MS) == 79
    assert len(lost._numbers) == len(lost._packets) == 21
    assert lost.lowest(500, now=99_000 * MS) == 500


def test_patience_grows_with_the_lateness_that_is_seen() -> None:
    reordering, rtt = Reordering(), take(RttEstimator(), 40)
    reordering.on_ack(5, 40 * MS, now=40 * MS)
    # A quarter of the least.
    assert (reordering.lateness, reordering.patience(rtt)) == (-1, 50 * MS)
    reordering.on_ack(3, 72 * MS, now=72 * MS)  # 32 ms late
    assert (reordering.lateness, reordering.patience(rtt)) == (32 * MS, 80 * MS)
    reordering.on_ack(4, 56 * MS, now=10_073 * MS)
    assert reordering.patience(rtt) == 80 * MS  # the greatest of the last 10 to 20 s counts
    reordering.on_ack(2, 48 * MS, now=20_074 * MS)
    assert reordering.patience(rtt) == 60 * MS
    reordering.on_ack(1, 9999 * MS, now=20_075 * MS)
    assert reordering.patience(rtt) == 2040 * MS  # no more than what is remembered
    for now in (31_000, 42_000):
        reordering.on_ack(now, 40 * MS, now=now * MS)
    assert (reordering.lateness, reordering.patience(rtt)) == (-1, 50 * MS)
    reordering.on_ack(1, 48 * MS, now=42_001 * MS)
    reordering.on_ack(99_999, 40 * MS, now=99_999 * MS)
    assert reordering.lateness == -1  # the window before was long ago


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=4000))
def test_outstanding_is_a_dictionary_of_numbers(steps: list[tuple[bool, int]]) -> None:
    outstanding, plain, sent = Outstanding(), dict[int, tuple[int, int, int, int]](), 0
    for add, back in steps:
        if add or sent == 0:
            stamp = (sent * 10, sent, 0, 0)
            outstanding.add(stamp)
            plain[sent] = stamp
            sent += 1
        else:
            start = max(sent - 1 - back, 0)
            stop = min(start + back % 7, sent)
            expected = [(n, plain.pop(n)) for n in range(start, stop) if n in plain]
            assert outstanding.take(start, stop) == expected
        assert outstanding.count == len(plain)
        assert outstanding.lowest == min(plain, default=sent)
    assert list(outstanding.below(sent)) == [(n, stamp[0]) for n, stamp in sorted(plain.items())]


def test_ten_packets_one_per_millisecond() -> None:
    rate = DeliveryRate(over_sending=True, now=0)
    stamps = [rate.stamp(k, now=k * MS) for k in range(10)]
    intervals = [rate.deliver(stamp, now=(50 + k) * MS) for k, stamp in enumerate(stamps)]
    assert rate.delivered == 10
    # Sent before anything was delivered: k + 1 packets within 50 + k ms since the first was sent.
    assert intervals == [(50 + k) * MS for k in range(10)]
    later = rate.stamp(1, now=60 * MS)
    assert later == (60 * MS, 10, 59 * MS, 9 * MS)
    for k in range(4):
        rate.deliver(rate.stamp(k + 2, now=(61 + k) * MS), now=(111 + k) * MS)
    assert rate.delivered == 14


def test_acks_in_a_bunch_do_not_look_like_a_fast_link() -> None:
    """Packets sent 90 ms apart, all ACKs at once: draft section 2.2."""
    rates = {}
    for over_sending in (True, False):
        rate = DeliveryRate(over_sending, now=0)
        rate.deliver(rate.stamp(0, now=0), now=40 * MS)
        sent = [rate.stamp(k + 1, now=(40 + 90 * k) * MS) for k in range(3)]
        rate.deliver(sent[0], now=230 * MS)
        late = rate.stamp(2, now=231 * MS)
        rate.deliver(sent[1], now=232 * MS)
        rate.deliver(sent[2], now=232 * MS)
        rates[over_sending] = rate.deliver(late, now=233 * MS)
    # The ACKs of the three packets before it came within 3 ms of its own ...
    assert rates[False] == 3 * MS
    # ... but sending them took from 40 ms to 231 ms.
    assert rates[True] == 191 * MS


@pytest.mark.parametrize(("over_sending", "interval_ms"), [(True, 30), (False, 5010)])
def test_an_idle_time_does_not_count(over_sending: bool, interval_ms: int) -> None:
    rate = DeliveryRate(over_sending, now=0)
    rate.deliver(rate.stamp(0, now=0), now=20 * MS)
    assert rate.deliver(rate.stamp(0, now=5000 * MS), now=5030 * MS) == interval_ms * MS


def test_the_interval_is_rounded_down_and_bounded() -> None:
    assert pacing_interval(3.0) == 333_333_333
    assert pacing_interval(1e-300) == 10**18
