"""Delivery-rate samples by hand."""

from __future__ import annotations

from distrlcc.transport.delivery import DeliveryRate

MS = 1_000_000


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


def test_an_idle_time_does_not_count() -> None:
    rate = DeliveryRate(over_sending=True, now=0)
    rate.deliver(rate.stamp(0, now=0), now=20 * MS)
    stamp = rate.stamp(0, now=5000 * MS)
    assert rate.deliver(stamp, now=5030 * MS) == 30 * MS
    kernel = DeliveryRate(over_sending=False, now=0)
    kernel.deliver(kernel.stamp(0, now=0), now=20 * MS)
    assert kernel.deliver(kernel.stamp(0, now=5000 * MS), now=5030 * MS) == 5010 * MS
