from __future__ import annotations

from typing import Any

from distrlcc.control.base import Controller, Oracle
from distrlcc.types import PACKET_BYTES, Ack


def ack(rtt_ms: Any) -> Any:
    return Ack(round(rtt_ms * 1e6), 0, 1, 0, 0, 1, 0, 0.0)


def test_holds_rate_times_its_least_rtt() -> None:
    oracle: Controller = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    assert oracle.cwnd == 10
    oracle.on_ack(ack(50), now=0)
    assert oracle.cwnd == 50
    oracle.on_ack(ack(39.5), now=0)
    assert oracle.cwnd == 40
    oracle.on_ack(ack(80), now=0)
    oracle.on_timeout(now=0, sent=3)
    assert oracle.cwnd == 40
    assert oracle.pacing_rate == 0


def test_never_holds_fewer_than_two() -> None:
    oracle = Oracle(rate_bps=8 * PACKET_BYTES)
    oracle.on_ack(ack(10), now=0)
    assert oracle.cwnd == 2


def test_follows_a_new_rate() -> None:
    oracle = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    oracle.on_ack(ack(40), now=0)
    oracle.rate_bps *= 2
    assert oracle.cwnd == 80


def test_full_rate_without_a_queue(link: Any, after: Any) -> None:
    oracle = Oracle(rate_bps=1000 * PACKET_BYTES * 8)
    (samples,) = link(rate=1000, rtt_ms=39, limit=100).run([oracle], 5)
    steady = after(samples, 1)
    assert len(steady) >= 0.999 * 1000 * 4
    assert max(sample.rtt for sample in steady) <= 40_000_000
