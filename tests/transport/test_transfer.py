"""Whole flows over links that lose, reorder, batch and break."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.transport.sender import SIMULATOR_OPTIONS, SenderOptions

MS = 1_000_000
PACKETS = 284


def scheme(name: str, window: float = 40.0) -> Callable[[int], Controller]:
    return lambda now: SchemeController(name, now=now, parameter=window)


def check(done: Any) -> None:
    """Every packet is acknowledged, found lost or in flight, and what is acknowledged came."""
    sender = done.sender
    assert done.acked >= done.packets
    assert done.acked + done.found_lost + sender.inflight == sender.next_number
    assert done.acked <= len(done.delivered)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter_ms", [0.0, 15.0])
@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_a_flow_ends_whatever_is_lost_and_reordered(
    transfer: Any, network: Any, loss: float, jitter_ms: float, seed: int
) -> None:
    way = network(loss=loss, jitter_ms=jitter_ms, seed=seed)
    done = transfer(scheme("cubic"), PACKETS, way)
    done.run()
    check(done)
    assert done.lost_on_the_way > 0
    assert done.receiver.reordered > 20 or jitter_ms == 0


@pytest.mark.parametrize("name", ["cubic", "reno", "vegas", "copa", "bbr", "ledbat", "fixed"])
def test_every_scheme_gets_through(transfer: Any, network: Any, name: str) -> None:
    way = network(loss=0.005, batch_ms=1.0, jitter_ms=0.3)
    done = transfer(scheme(name), 2 * PACKETS, way)
    done.run(60.0)
    check(done)


def test_a_full_link_without_loss(transfer: Any, network: Any) -> None:
    done = transfer(scheme("fixed", 40.0), PACKETS, network(queue=None))
    done.run()
    check(done)
    assert done.found_lost == 0
    assert done.timeouts == []
    # 12 Mbit/s for 284 packets and 40 more in flight takes 0.32 s; two round trips come beside.
    assert done.now < 400 * MS


@pytest.mark.parametrize("batch_ms", [0.0, 5.0])
def test_reordering_within_the_thresholds_is_no_loss(
    transfer: Any, network: Any, batch_ms: float
) -> None:
    """A packet a millisecond, each late by up to 2.9 ms: overtaken by two at most.

    Packet and ACK together are late by less than an eighth of the RTT, 60 ms or more.
    """
    way = network(queue=None, delay_ms=30.0, jitter_ms=2.9, batch_ms=batch_ms)
    done = transfer(scheme("fixed", 30.0), PACKETS, way)
    done.run()
    check(done)
    assert done.receiver.reordered > 40
    assert done.found_lost == 0


def test_reordering_beyond_the_thresholds_is_taken_for_loss(transfer: Any, network: Any) -> None:
    done = transfer(scheme("fixed", 30.0), PACKETS, network(queue=None, jitter_ms=15.0))
    done.run()
    check(done)
    assert done.found_lost > 10


def test_without_reordering_all_that_is_found_lost_is_lost(transfer: Any, network: Any) -> None:
    done = transfer(scheme("cubic"), PACKETS, network(loss=0.05, batch_ms=2.0))
    done.run()
    check(done)
    sent = set(range(done.sender.next_number))
    assert done.found_lost > 10
    assert done.found_lost <= len(sent - done.delivered)


def test_an_outage_backs_off_and_ends(transfer: Any, network: Any) -> None:
    done = transfer(scheme("cubic"), PACKETS, network(outage_ms=(150.0, 5000.0)))
    done.run()
    check(done)
    waits = [b - a for a, b in pairwise(done.timeouts)]
    during = [wait for wait, at in zip(waits, done.timeouts[1:], strict=True) if at < 5000 * MS]
    assert len(during) >= 3
    assert all(b == 2 * a for a, b in pairwise(during))
    assert done.sender.timeouts_in_row == 0
    assert done.now < 9000 * MS


def test_the_simulators_rules_get_through_too(transfer: Any, network: Any) -> None:
    done = transfer(scheme("reno"), PACKETS, network(loss=0.02), SIMULATOR_OPTIONS)
    done.run()
    check(done)


def test_the_same_seed_gives_the_same_flow(transfer: Any, network: Any) -> None:
    ends = []
    for _ in range(2):
        done = transfer(scheme("bbr"), PACKETS, network(loss=0.02, jitter_ms=3.0, seed=9))
        done.run()
        ends.append((done.now, done.sender.next_number, done.receiver.bytes))
    assert ends[0] == ends[1]


def test_a_paced_scheme_on_a_real_clock_keeps_its_rate(transfer: Any, network: Any) -> None:
    class Paced:
        cwnd = 1000.0
        pacing_rate = 500.0

        def on_ack(self, ack: object, *, now: int) -> None: ...

        def on_timeout(self, *, now: int, sent: int) -> None: ...

        def on_interval(self, stats: object, *, now: int) -> None: ...

    done = transfer(lambda now: Paced(), PACKETS, network(), SenderOptions(catch_up_ns=0))
    done.run()
    check(done)
    assert done.now == pytest.approx((PACKETS / 500.0 + 0.08) * 1e9, rel=0.05)
