"""RFC 9002 section 6.1, and the bookkeeping of what is outstanding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distrlcc.transport.loss import NEVER, LossDetector
from distrlcc.transport.outstanding import Outstanding
from distrlcc.transport.rtt import RttEstimator

MS = 1_000_000


def flight(count: int, gap_ms: int = 1) -> Outstanding:
    outstanding = Outstanding()
    for k in range(count):
        outstanding.add((k * gap_ms * MS, 0, 0, 0))
    return outstanding


def rtt_of(ms: int) -> RttEstimator:
    rtt = RttEstimator()
    rtt.smooth(rtt.sample(ms * MS))
    return rtt


def test_the_packet_threshold() -> None:
    outstanding, rtt = flight(10), rtt_of(100)
    detector = LossDetector(3, 0.0)
    outstanding.take(2, 3)
    assert detector.find(outstanding, 2, rtt, now=50 * MS) == []
    outstanding.take(3, 4)
    assert detector.find(outstanding, 3, rtt, now=50 * MS) == [0]
    outstanding.take(9, 10)
    assert detector.find(outstanding, 9, rtt, now=50 * MS) == [1, 4, 5, 6]
    assert detector.loss_time == NEVER
    assert (outstanding.lowest, outstanding.count) == (7, 2)


def test_the_time_threshold() -> None:
    outstanding, rtt = flight(5), rtt_of(80)
    detector = LossDetector(3, 9 / 8)
    outstanding.take(2, 3)
    assert detector.find(outstanding, 2, rtt, now=82 * MS) == []
    assert detector.loss_time == 90 * MS  # packet 0 left at 0: 9/8 of 80 ms later
    assert detector.find(outstanding, 2, rtt, now=detector.loss_time) == [0]
    assert detector.loss_time == 91 * MS
    assert detector.find(outstanding, 2, rtt, now=200 * MS) == [1]
    assert detector.loss_time == NEVER  # nothing later than 3 and 4 was acknowledged


def test_the_time_threshold_is_no_finer_than_a_millisecond() -> None:
    outstanding, rtt = Outstanding(), RttEstimator()
    rtt.smooth(rtt.sample(1000))
    outstanding.add((0, 0, 0, 0))
    outstanding.add((0, 0, 0, 0))
    outstanding.take(1, 2)
    detector = LossDetector(3, 9 / 8)
    assert detector.find(outstanding, 1, rtt, now=MS - 1) == []
    assert detector.loss_time == MS
    assert detector.find(outstanding, 1, rtt, now=MS) == [0]


def test_the_simulators_rule_loses_a_gap_at_once() -> None:
    outstanding = flight(4)
    outstanding.take(3, 4)
    assert LossDetector(1, 0.0).find(outstanding, 3, RttEstimator(), now=9 * MS) == [0, 1, 2]


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
    assert outstanding.below(sent) == [(n, stamp[0]) for n, stamp in sorted(plain.items())]


def test_what_is_done_is_forgotten() -> None:
    outstanding = Outstanding()
    for number in range(100_000):
        outstanding.add((number, 0, 0, 0))
        if number >= 50:
            outstanding.take(number - 50, number - 49)
    assert outstanding.count == 50
    assert len(outstanding._stamps) < 3000
