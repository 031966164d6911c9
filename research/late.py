"""Measure how well a sender can do that hears of its link late, as each does that no one tells.

python -m research late falls
python -m research late dynamic --split test --json -

An ACK tells of a packet's departure one round trip later. So a sender that knew all about the link
as it was a round trip ago, and held the oracle's window of then, would be ahead of any real one.
Links are of given rates, with one flow. What a window has beyond the oracle's is the best of
`SURPLUSES`, the same for all links.

Flags:
    suite? SUITE =falls  as 'distrlcc evaluate' takes it
    --split {validation|test} =validation  of its links
    --links N {1..} =128  at most N of them
    $JSON
"""

from __future__ import annotations

import sys
from argparse import Namespace

import numpy as np

from distrlcc.cli.output import emit_json
from distrlcc.control.state import CWND
from distrlcc.errors import ConfigError
from distrlcc.evaluation.recovery import recoveries
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Flow, Scenario
from distrlcc.sim.simulator import Simulator
from distrlcc.sim.suites import load_suite
from distrlcc.types import NANOSECONDS, FloatArray

LATE_RTTS = (0.0, 0.5, 1.0, 1.5, 2.0)
SURPLUSES = (0.0, 0.25, 0.5, 0.75, 1.0)
_STEP, _PER_SECOND = 1_000_000, 1000


def run(args: Namespace) -> int:
    """Measure and print a line for each lateness."""
    scenarios = load_suite(args.suite).scenarios(args.split, args.links)
    for scenario in scenarios:
        if scenario.link.trace is not None or scenario.flows != (Flow(),):
            raise ConfigError(f"{scenario.name}: expected links of given rates with one flow")
    out, found = sys.stderr if args.json == "-" else sys.stdout, {}
    for late in LATE_RTTS:
        tried = [{"surplus": more} | measure(scenarios, late, more) for more in SURPLUSES]
        best = found[f"{late:g}"] = max(tried, key=lambda one: one["power"])
        print(f"{late:g} RTT late: ", *(f"{k} {v:.4g} " for k, v in best.items()), file=out)
    emit_json(args.json, found)
    return 0


def measure(scenarios: list[Scenario], late_rtts: float, surplus: float) -> dict[str, float]:
    """Return mean power and utilisation after the first second, and the median recovery, RTTs."""
    count, links = len(scenarios), np.arange(len(scenarios))
    simulator = Simulator(count, with_best=True)
    for n, scenario in enumerate(scenarios):
        simulator.load(n, scenario)
    ends = np.array([round(s.duration_s * _PER_SECOND) for s in scenarios])
    steps = int(ends.max())
    late = np.round(late_rtts * np.array([_rtts_ms(s, steps) for s in scenarios]).T).astype(int)
    best, inflight = np.zeros((steps, count)), np.zeros((steps, count))
    sums, queueing = np.zeros((4, count)), np.zeros((2, count))
    for step in range(steps):
        # The window is the oracle's of some round trips ago.
        best[step] = simulator.results[:, col.BEST_CWND]
        known = best[np.maximum(step - late[step], 0), links]
        simulator.control[:, CWND] = np.maximum(known + surplus, 2.0)
        simulator.advance(_STEP)
        # What counts is from the first second's end to the scenario's.
        stats, (used, capacity) = simulator.stats(), simulator.results.T[[col.USED, col.CAPACITY]]
        inflight[step] = stats.inflight
        if step >= _PER_SECOND:
            sums += np.where(step < ends, [used, capacity, stats.rtt_sum, stats.acked], 0.0)
        now = simulator.flows[:, col.QUEUEING_SUM]
        queueing = np.where(step < np.array([np.full(count, _PER_SECOND), ends]), now, queueing)
    # Power and recovery as an evaluation has them.
    utilisation, mean_rtt = sums[0] / sums[1], sums[2] / sums[3]
    waits = (queueing[1] - queueing[0]) / NANOSECONDS / sums[3]
    times = np.arange(1, steps + 1) / _PER_SECOND
    found = [
        recoveries(scenario, times[:end], inflight[:end, n])
        for n, (scenario, end) in enumerate(zip(scenarios, ends, strict=True))
    ]
    return {
        "power": float((utilisation * (1.0 - waits / mean_rtt)).mean()),
        "utilisation": float(utilisation.mean()),
        "recovery_rtts": float(np.quantile(np.concatenate(found), 0.5, method="lower")),
    }


def _rtts_ms(scenario: Scenario, steps: int) -> FloatArray:
    """Return the base RTTs of steps, ms."""
    rtts = np.full(steps, 2.0 * scenario.link.delay_ms)
    for change in scenario.link.changes:
        if change.delay_ms is not None:
            rtts[round(change.at_s * _PER_SECOND) :] = 2.0 * change.delay_ms
    return rtts
