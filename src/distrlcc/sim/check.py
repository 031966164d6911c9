"""Kernel against reference on random scenarios: departures, losses, marks, ACKs, windows, labels.

Capacity, round trip and each field of the steps' `IntervalStats` are compared as well, so the
sender of real networks counts as the kernel does.

Half of the scenarios have round numbers (a packet per millisecond, delays and steps of whole
milliseconds). Ties happen there, and two programs come apart.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from distrlcc.control.state import CWND, PACING
from distrlcc.sim import layout as col
from distrlcc.sim.reference import PACKET_BITS, Reference, capacity, conditions_at, rate_schedule
from distrlcc.sim.scenario import JITTERS, Change, Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.types import NANOSECONDS, FloatArray, IntervalStats

ROUND_RATE = 12.032  # Mbit/s at which a packet takes exactly one millisecond

EWMAS = ("delay_ewma", "delivery_rate_ewma", "send_rate_ewma")
"""Fields that are averages of floats: compared to `TOLERANCE`; all others must be equal."""
TOLERANCE = 1e-9  # relative: compiled sums may be contracted

_SCHEMES = ("fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat", "oracle")


@dataclass(frozen=True)
class Script:
    """A scenario with what its agents do."""

    scenario: Scenario
    steps_ns: list[int]
    windows: list[list[float]]  # windows of the flows at each step, packets; read for agents alone
    pacing: list[list[float]]  # pacing rates at each step, packets/s; 0 is unpaced


def random_script(seed: int, number: int) -> Script:
    """Draw a scenario and its agents' actions from the whole space."""
    rng = np.random.default_rng([seed, number])
    even = bool(rng.random() < 0.5)
    # An eighth have queues of up to 15,000 packets, and windows that fill them.
    depth = 50 if number % 8 == 7 else 1
    link = _random_link(rng, even, depth)
    # Fast links are short, for the reference's sake.
    seconds = float(rng.uniform(0.5, 4.0)) if (link.rate_mbps or 0.0) <= 30 else 0.5
    # Changes within that time, the last of which ends a silence.
    changes = [change for change in link.changes if change.at_s < seconds]
    if changes and changes[-1].rate_mbps == 0:
        changes[-1] = replace(changes[-1], rate_mbps=ROUND_RATE)
    silent = link.rate_mbps == 0 and not changes
    rate = ROUND_RATE if silent else link.rate_mbps
    link = replace(link, rate_mbps=rate, changes=tuple(changes))
    flows = tuple(_random_flow(rng, even, seconds) for _ in range(int(rng.integers(1, 6))))
    steps: list[int] = []
    while sum(steps) < seconds * 1e9:
        steps.append(10_000_000 if even else int(rng.integers(1_000, 60_000_000)))
    shape = (len(steps), len(flows))
    windows = depth * np.round(np.exp(rng.uniform(0.0, np.log(150.0), shape)), 0 if even else 2)
    rates = np.exp(rng.uniform(np.log(20.0), np.log(3000.0), shape))
    if even:
        rates = 1000.0 / rng.integers(1, 20, shape)
    paced = np.array([f.scheme == "agent" and bool(rng.random() < 0.5) for f in flows])
    name, own = f"random {seed}/{number}", int(rng.integers(2**40))
    scenario = Scenario(name, link, flows, duration_s=seconds, seed=own)
    scenario = _with_reordering(np.random.default_rng([seed, number, 1]), even, scenario)
    scenario = _with_kinds(np.random.default_rng([seed, number, 2]), scenario)
    scenario = _with_marks(rng, scenario)
    return Script(scenario, steps, windows.tolist(), np.where(paced, rates, 0.0).tolist())


def _with_reordering(rng: np.random.Generator, even: bool, scenario: Scenario) -> Scenario:
    """Let a third of the links reorder, by less than a sender first waits for or by more."""
    link = scenario.link
    if link.delayed_acks or rng.random() < 0.6:
        return scenario
    share, late = np.exp(rng.uniform(np.log((0.003, 0.2)), np.log((0.7, 300.0))))
    reorder = f"{share:.6g}:{max(round(late), 1) if even else late:.6g}"
    return replace(scenario, link=replace(link, reorder=reorder))


def _with_kinds(rng: np.random.Generator, scenario: Scenario) -> Scenario:
    link, draws = scenario.link, rng.choice(JITTERS, 2).tolist()
    kinds = {
        f"{name}_kind": kind
        for name, kind in zip(("jitter", "ack_jitter"), draws, strict=True)
        if getattr(link, f"{name}_ms")
    }
    return replace(scenario, link=replace(link, **kinds))


def _with_marks(rng: np.random.Generator, scenario: Scenario) -> Scenario:
    link, queue = scenario.link, scenario.link.queue
    chance, above = rng.random(), int(np.exp(rng.uniform(0, 5)))
    if link.aqm is not None and chance < 0.5:
        link = replace(link, aqm=f"{link.aqm},ecn=1")
    elif queue.kind == "droptail" and chance < 0.2 and queue.packets != 1:
        aqm = f"droptail:{queue.arguments},mark={min(above, (queue.packets or above + 1) - 1)}"
        link = replace(link, queue_packets=None, queue_bytes=None, aqm=aqm)
    flows = tuple(replace(flow, ecn=bool(rng.random() < 0.6)) for flow in scenario.flows)
    return replace(scenario, link=link, flows=flows)


def _random_link(rng: np.random.Generator, even: bool, depth: int) -> Link:
    def choose(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    # Delay, queue and loss.
    kind = rng.choice(["rate", "schedule", "trace"])
    wide = bool(rng.random() < 0.15)
    slowest_and_fastest = (0.1, 1000.0) if wide else (0.5, 30.0)
    delay = float(rng.integers(0, 40)) if even else choose(0.1, 200.0 if wide else 80.0)
    queue = _random_queue(rng, even, depth)
    loss = float(rng.choice([0.0, 0.0, 0.01, 0.3]))
    # Changes of delay and loss; of the rate too where there is a schedule.
    times = np.sort(rng.choice(np.arange(1, 400), int(rng.integers(1, 6)), replace=False)) * 0.01
    drawn: list[dict[str, Any]] = []
    if kind == "schedule" or rng.random() < 0.3:
        drawn = [
            {
                "at_s": float(t),
                "delay_ms": float(rng.integers(0, 60)) if rng.random() < 0.5 else None,
                "loss": float(rng.choice([0.0, 0.05])) if rng.random() < 0.4 else None,
            }
            for t in times
        ]
    rate = ROUND_RATE * float(rng.choice([0.5, 1.0, 2.0])) if even else choose(*slowest_and_fastest)
    if kind == "schedule":
        rates = [
            ROUND_RATE * float(rng.choice([0.0, 0.25, 1.0, 4.0])) if even else choose(0.2, 30.0)
            for _ in drawn
        ]
        rates[-1], rate = rate, rate * (rng.random() < 0.8)
        drawn = [{**c, "rate_mbps": r} for c, r in zip(drawn, rates, strict=True)]
    changes = tuple(Change(**c) for c in drawn if [*c.values()].count(None) < len(c) - 1)
    # How ACKs come back.
    shaped: dict[str, Any] = {}
    if rng.random() < 0.7:
        jitter, tick = (float(rng.integers(0, 50)) if even else choose(0.1, 100) for _ in range(2))
        shaped = {
            "ack_jitter_ms": jitter * float(rng.random() < 0.5),
            "ack_tick_ms": tick * float(rng.random() < 0.5),
            "delayed_acks": bool(rng.random() < 0.5),
        }
    # A trace takes no rate.
    if kind == "trace":
        seed = int(rng.integers(20))
        constant = f"constant:{round(rate, 3)}"
        trace = str(rng.choice([f"cellular:{seed}", f"poisson:6:{seed}", constant]))
        start = float(rng.integers(0, 60)) if even else float(rng.uniform(0, 60))
        carries: dict[str, Any] = {"trace": trace, "trace_start_s": start}
    else:
        carries = {"rate_mbps": rate}
    return Link(**carries, delay_ms=delay, loss=loss, changes=changes, **queue, **shaped)


def _random_queue(rng: np.random.Generator, even: bool, depth: int) -> dict[str, Any]:
    def choose(low: float, high: float) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    # A droptail; or CoDel or PIE, whose limits are often out of reach.
    queue: dict[str, Any] = {}
    limit = {"packets": depth * choose(1, 300), "bytes": depth * choose(1504, 300 * 1504)}
    pick = rng.random()
    name = "packets" if pick < 0.6 else "bytes"
    if pick < 0.8:
        queue[f"queue_{name}"] = limit[name]
    if rng.random() < 0.3:
        times = choose(1, 30), choose(2, 120)
        codel = bool(rng.random() < 0.6)
        if codel:
            times = times[0], max(times[1], times[0] + 1)
        names = ("target", "interval") if codel else ("qdelay_ref", "max_burst")
        given = ",".join(f"{k}={v}" for k, v in zip(names, times, strict=True))
        kind = "codel" if codel else "pie"
        queue = {"aqm": f"{kind}:{name}={limit[name] * choose(1, 20)},{given}"}
    # Jitter and a policer.
    if rng.random() < 0.25:
        queue["jitter_ms"] = float(rng.integers(1, 20)) if even else choose(10, 5000) / 100
    if rng.random() < 0.2:
        queue["policer_mbps"] = ROUND_RATE / 2 if even else choose(20, 2000) / 100
        queue["policer_packets"] = choose(1, 60)
    return queue


def _random_flow(rng: np.random.Generator, even: bool, seconds: float) -> Flow:
    scheme = "agent" if rng.random() < 0.6 else str(rng.choice(_SCHEMES))
    start = float(rng.choice([0.0, 0.1, 0.5])) if even else float(rng.uniform(0, 0.5)) * seconds
    stop = start + float(rng.uniform(0.0, seconds)) if rng.random() < 0.3 else None
    return Flow(
        scheme,
        start_s=start,
        stop_s=stop,
        packets=int(np.exp(rng.uniform(0, np.log(3000)))) if rng.random() < 0.2 else None,
        extra_rtt_ms=float(rng.integers(0, 30)) if rng.random() < 0.5 else 0.0,
        cwnd=float(rng.integers(1, 60)) if scheme in ("agent", "fixed") else None,
    )


def compare(script: Script) -> str | None:
    """Run a script on both; return the first difference, or None."""
    scenario = script.scenario
    reference = Reference(scenario)
    flows = len(scenario.flows)
    simulator = Simulator(1, flows, with_ewmas=True, with_best=True, log_packets=256)
    simulator.load(0, scenario)
    before = np.zeros(2)
    for step, (length, windows, pacing) in enumerate(
        zip(script.steps_ns, script.windows, script.pacing, strict=True)
    ):
        for k, flow in enumerate(reference.flows):
            if scenario.flows[k].scheme == "agent":
                flow.held.cwnd, flow.held.pacing_rate = windows[k], pacing[k]
                simulator.control[k, CWND], simulator.control[k, PACING] = windows[k], pacing[k]
        reference.run(length)
        simulator.advance(length)
        seen = chain(_flows(simulator, reference), _link(simulator, reference, length, before))
        if difference := _first_difference(seen):
            return f"{scenario.name}, step {step}: {difference}"
        before = simulator.results[0, [col.TOTAL_USED, col.TOTAL_CAPACITY]]
    reference.settle()
    difference = _first_difference(_queue(simulator, reference))
    reference.drain()
    # A live link's packets depart and are acknowledged, with nothing sent any more.
    stops = simulator.flows[:, col.STOP]
    stops[:] = np.minimum(stops, simulator.links[0, col.NOW])
    while (simulator.log[1 : int(simulator.log[0, 0]) + 1, 2] == col.FOREVER).any():
        simulator.advance(1_000_000_000)
    difference = difference or _first_difference(_packets(simulator, reference))
    return difference and f"{scenario.name}, {difference}"


_Seen = Iterator[tuple[str, Any, Any, float]]
"""What is compared: its name, what the kernel and the reference have, and how far apart at most."""


def _first_difference(seen: _Seen) -> str | None:
    for what, got, expected, slack in seen:
        if got != expected and not (slack and abs(got - expected) <= slack):
            return f"{what}: kernel {got}, reference {expected}"
    return None


def _flows(simulator: Simulator, reference: Reference) -> _Seen:
    stats = simulator.stats()
    for k, flow in enumerate(reference.flows):
        row: Any = simulator.flows[k]
        yield f"flow {k}, packets sent", row[col.SENT], len(flow.packets), 0
        yield f"flow {k}, queueing", row[col.QUEUEING_SUM], flow.queueing, 0
        yield f"flow {k}, completed", row[col.COMPLETED], flow.completed, 0
        yield f"flow {k}, marks", row[col.MARKS], flow.marked, 0
        yield f"flow {k}, started", bool(row[col.STARTED]), flow.sender is not None, 0
        for name in IntervalStats.names() if flow.stats is not None else ():
            got, expected = float(getattr(stats, name)[k]), float(getattr(flow.stats, name)[0])
            yield f"flow {k}, {name}", got, expected, TOLERANCE * expected * (name in EWMAS)


def _link(simulator: Simulator, reference: Reference, step: int, before: FloatArray) -> _Seen:
    """Compare what a step's rewards and labels rest on; ``before``: totals used and carried."""
    link, now, row = reference.scenario.link, reference.now, simulator.results[0]
    yield "used", row[col.USED], row[col.TOTAL_USED] - before[0], 0
    carried = capacity(link, now - step, now) / PACKET_BITS
    if link.policer_mbps is not None:  # what could pass it since the start, or has
        policed = round(link.policer_mbps * 1e6) * now
        total = max(min(capacity(link, 0, now), policed) / PACKET_BITS, row[col.TOTAL_USED])
        carried = total - before[1]
    # A packet lasts whole ns.
    slack = max(1e-4 * carried, 1e-6 + 1e-4 * before[1])
    yield "capacity", row[col.CAPACITY], carried, slack
    rates = [] if link.trace is not None else [r for at, r in rate_schedule(link) if at <= now]
    service = PACKET_BITS / rates[-1] if rates and rates[-1] else 0.0
    base = 2 * conditions_at(link, now)[0] + service
    yield "base RTT, ns", row[col.BASE_RTT] * NANOSECONDS, base, 1.0
    # The first flow's label for a next step of the same length, rounded up.
    best = math.ceil(reference.best_window(0, now + step))
    yield "best window", np.ceil(row[col.BEST_CWND]), best, 0


def _queue(simulator: Simulator, reference: Reference) -> _Seen:
    """Compare the queue and the capacity used until now, which rewards and scores rest on."""
    departed = sum(0 <= r.departure < col.FOREVER for r in reference.records)
    queue = reference.link.queued
    got, used = simulator.results[0, col.QUEUE], simulator.results[0, col.TOTAL_USED]
    # A rate link's queue counts the packet in service in part, and each may last up to 1 ns more.
    served = 0.0 if reference.scenario.link.trace is not None else 1.0
    yield "queue", got, min(max(got, queue - served - 1e-6), queue + 1e-4), 0
    yield "used", used, departed + queue - got, 1e-4


def _packets(simulator: Simulator, reference: Reference) -> _Seen:
    log = simulator.log[1 : int(simulator.log[0, 0]) + 1].tolist()
    yield "packets", len(log), len(reference.records), 0
    for k, (row, r) in enumerate(zip(log, reference.records, strict=True)):
        expected = [r.flow, r.sent, r.departure, r.ack]
        yield f"packet {k} (flow, sent, departure, ACK)", row, expected, 0
    for k, flow in enumerate(reference.flows):
        dropped = sum(r.departure == -1 for r in flow.packets)
        lost = sum(r.ack == -1 for r in flow.packets) - dropped
        counted = simulator.flows[k, [col.DROPPED, col.RANDOM_LOST]].tolist()
        yield f"flow {k} (dropped, lost at random)", counted, [dropped, lost], 0
