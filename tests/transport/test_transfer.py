"""Whole flows over links that lose, reorder, batch and break."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from distrlcc.control.base import Controller, Held
from distrlcc.control.schemes import SchemeController
from distrlcc.control.state import SCHEMES
from distrlcc.sim.scenario import Flow
from distrlcc.transport.sender import SIMULATOR_OPTIONS, SenderOptions
from tests.transport.flow import Network, Transfer

MS = 1_000_000
PACKETS = 284
ADAPTIVE = list(SCHEMES)[3:]


def _scheme(name: str, now: int) -> Controller:
    return SchemeController(name, now=now, parameter=30)


def finish(
    make: str | Callable[[int], Controller],
    network: Network,
    packets: int = PACKETS,
    options: SenderOptions | None = None,
) -> Transfer:
    """Run a flow of a scheme, with a window of 30 where it is fixed, to its end.

    Every packet is acknowledged, found lost or in flight, and what is acknowledged came.
    """
    if isinstance(make, str):
        make = partial(_scheme, make)
    done = Transfer(make, packets, network, options)
    done.run()
    sender = done.sender
    assert done.acked >= done.packets
    assert done.acked + done.found_lost + sender.inflight == sender.next_number
    assert done.acked <= len(done.delivered)
    return done


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter_ms", [0.0, 15.0])
@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_a_flow_ends_whatever_is_lost_and_reordered(
    loss: float, jitter_ms: float, seed: int
) -> None:
    done = finish("cubic", Network(loss=loss, jitter_ms=jitter_ms, seed=seed))
    assert done.lost_on_the_way > 0
    assert (done.receiver.reordered > 20) == bool(jitter_ms)
    if not jitter_ms:  # all that is found lost is lost
        assert done.spurious == 0
        assert done.found_lost <= len(set(range(done.sender.next_number)) - done.delivered)


@pytest.mark.parametrize("name", ["fixed", *ADAPTIVE])
@pytest.mark.parametrize("options", [None, SIMULATOR_OPTIONS])
def test_every_scheme_gets_through(name: str, options: SenderOptions | None) -> None:
    done = finish(name, Network(loss=0.005, batch_ms=1.0, jitter_ms=0.3), 2 * PACKETS, options)
    assert done.now < 60_000 * MS


def test_a_full_link_without_loss() -> None:
    done = finish("fixed", Network(queue=None))
    assert (done.found_lost, done.timeouts) == (0, [])
    # 12 Mbit/s for 284 packets and 30 more in flight takes 0.31 s; two round trips come beside.
    assert done.now < 400 * MS


@pytest.mark.parametrize("batch_ms", [0.0, 5.0])
def test_reordering_within_the_thresholds_is_no_loss_and_beyond_it_is_once(batch_ms: float) -> None:
    """A packet a millisecond, each late by up to 2.9 ms: overtaken by two at most.

    Packet and ACK together are late by less than an eighth of the RTT, 60 ms or more.
    """
    way = Network(queue=None, delay_ms=30.0, jitter_ms=2.9, batch_ms=batch_ms)
    done = finish("fixed", way)
    assert done.receiver.reordered > 40
    assert done.found_lost == done.spurious == 0
    far = finish("fixed", Network(queue=None, jitter_ms=15.0, batch_ms=batch_ms), 5 * PACKETS)
    assert far.receiver.reordered > 200
    assert (far.found_lost, far.timeouts) == (0, [])
    assert 0 < far.spurious < 0.02 * far.acked


@pytest.mark.parametrize("name", ADAPTIVE)
def test_reordering_takes_nothing_from_a_scheme(name: str) -> None:
    straight, crooked = (
        finish(name, Network(delay_ms=20.0, late=late), 1500) for late in ((0.0, 0.0), (0.2, 6.0))
    )
    assert crooked.receiver.reordered > 50
    assert crooked.now < 1.1 * straight.now
    assert crooked.spurious < 0.02 * crooked.acked


def test_packets_that_are_late_by_many_rtts_are_learnt_of() -> None:
    done = finish("fixed", Network(delay_ms=5.0, queue=None, late=(0.05, 100.0)), 3000)
    assert done.receiver.reordered > 100
    assert done.found_lost <= 5  # of the end, which nobody waits for
    assert 0 < done.spurious < 0.02 * done.acked


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_path_that_falls_silent_and_delivers_late_costs_no_window(name: str) -> None:
    """The link serves nothing for 2 s, and then all that it held: each timeout was spurious."""
    ends = {}
    for silence in (0.0, 2000.0):
        done = Transfer(partial(_scheme, name), 3000, Network(queue=None, silence_ms=silence))
        done.run()
        ends[silence] = done
    assert len(ends[2000.0].timeouts) >= 2
    assert ends[2000.0].now - ends[0.0].now < 2500 * MS


def test_an_outage_backs_off_and_ends() -> None:
    done = finish("cubic", Network(outage_ms=(150.0, 5000.0)))
    waits = [b - a for a, b in pairwise(done.timeouts)]
    during = [wait for wait, at in zip(waits, done.timeouts[1:], strict=True) if at < 5000 * MS]
    assert len(during) >= 3
    assert all(b == 2 * a for a, b in pairwise(during))
    assert done.sender.rtt.backoff == 0
    assert done.now < 9000 * MS


def test_a_paced_scheme_on_a_real_clock_keeps_its_rate() -> None:
    paced = Held(*Flow(cwnd=1000.0, pacing_mbps=6.016).first_held)  # 500 packets/s
    done = finish(lambda now: paced, Network(), options=SenderOptions(catch_up_ns=0))
    assert done.now == pytest.approx((PACKETS / 500.0 + 0.08) * 1e9, rel=0.05)
