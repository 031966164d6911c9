"""The emulated link against the event-driven reference, packet by packet."""

from dataclasses import replace
from typing import Any

import pytest

from distrlcc.errors import ConfigError
from distrlcc.net.worlds.emulated_link import EmulatedLink
from distrlcc.sim.reference import Reference
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.types import PACKET_BYTES

STEP = 10_000_000
FLOWS = (Flow("fixed", cwnd=40), Flow("fixed", cwnd=30, start_s=0.5, stop_s=1.5, extra_rtt_ms=8.0))
LINKS = {
    "constant": Link(rate_mbps=12.0, delay_ms=20.0, queue_packets=30, loss=0.02),
    "changing": Link(
        rate_mbps=12.0,
        delay_ms=20.0,
        queue_packets=40,
        changes=(
            Change(0.7, rate_mbps=3.0),
            Change(1.0, delay_ms=35.0, loss=0.1),
            Change(1.3, rate_mbps=0.0),
            Change(1.5, rate_mbps=8.0, delay_ms=10.0),
        ),
    ),
    "shorter, with jitter": Link(
        rate_mbps=12.0,
        delay_ms=35.0,
        queue_packets=40,
        ack_jitter_ms=10.0,
        changes=(Change(0.5, delay_ms=10.0), Change(1.1, delay_ms=30.0), Change(1.4, delay_ms=5.0)),
    ),
    "trace": Link(trace="cellular:5", trace_start_s=3.0, delay_ms=15.0, queue_packets=60),
}


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("look", [1, 7_000_000], ids=["at each event", "now and then"])
def test_packets_fare_as_in_the_reference(name: str, look: int) -> None:
    scenario = Scenario(name, LINKS[name], FLOWS, duration_s=2.0, seed=3)
    reference, link, acks = Reference(scenario), EmulatedLink(scenario), dict[Any, Any]()
    for _ in range(200):
        reference.run(STEP)
    reference.drain()
    sent, seen = [0, 0], 0
    for record in reference.records:
        while look > 1 and seen + look <= record.sent:
            seen += look
            acks |= {(d.flow, d.number): d.time for d in link.advance(now=seen)}
        acks |= {(d.flow, d.number): d.time for d in link.advance(now=record.sent)}
        link.arrive(record.flow, sent[record.flow], PACKET_BYTES, now=record.sent)
        sent[record.flow] += 1
    acks |= {(d.flow, d.number): d.time for d in link.advance(now=1 << 40)}
    expected = {
        (flow.number, k): record.ack
        for flow in reference.flows
        for k, record in enumerate(flow.packets)
        if record.ack >= 0
    }
    assert acks == expected
    assert len(reference.records) >= 300


@pytest.mark.parametrize("name", LINKS)
def test_truth_is_the_simulators(name: str) -> None:
    scenario = Scenario(name, LINKS[name], FLOWS, duration_s=2.0, seed=3)
    simulator = Simulator(1, 2, with_best=True)
    simulator.load(0, scenario)
    reference, link = Reference(scenario), EmulatedLink(scenario)
    sent, fed, used = [0, 0], 0, 0.0
    for step in range(1, 200):
        simulator.advance(STEP)
        reference.run(STEP)
        now = step * STEP
        for record in reference.records[fed:]:
            link.advance(now=record.sent)
            link.arrive(record.flow, sent[record.flow], PACKET_BYTES, now=record.sent)
            sent[record.flow] += 1
        fed = len(reference.records)
        link.advance(now=now)
        capacity, carried, _, best, base, *_ = simulator.results[0]
        assert link.offered(now - STEP, now) == pytest.approx(capacity, abs=1e-4)
        assert link.best_window(STEP, now=now) == pytest.approx(best, abs=1e-4)
        assert link.base_rtt(now=now) == pytest.approx(base, rel=1e-6)
        if scenario.link.trace is None:
            assert link.used(now=now) - used == pytest.approx(carried, abs=1e-4)
        used = link.used(now=now)
    assert used > 200


def test_what_it_cannot_do_is_refused_in_one_line() -> None:
    link = LINKS["constant"]
    aqm = replace(link, queue_packets=None, aqm="pie:packets=9")
    for each in (aqm, replace(link, jitter_ms=1.0)):
        with pytest.raises(ConfigError, match="droptail alone: take one without aqm, jitter_ms"):
            EmulatedLink(Scenario("live", each))
    with pytest.raises(ConfigError, match="stop_s in place of packets"):
        EmulatedLink(Scenario("sized", link, (Flow(packets=5),)))
