"""Measure the simulator on one core: the kernel on three links, beside the reference.

Flags:
    $JSON
    --envs N {1..} =256  environments
    --steps N {1..} =500  steps of 10 ms
    --repeats N {1..} =5  best of so many
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from distrlcc.cli.output import Countdown, emit_json
from distrlcc.control.state import CWND
from distrlcc.sim import layout as col
from distrlcc.sim.reference import Reference
from distrlcc.sim.scenario import Flow, Link, Scenario
from distrlcc.sim.simulator import Simulator

STEP_NS = 10_000_000

LINKS: dict[str, tuple[Link, float]] = {
    "12 Mbit/s": (Link(rate_mbps=12, delay_ms=20, queue_packets=80), 41.0),
    "100 Mbit/s": (Link(rate_mbps=100, delay_ms=20, queue_packets=660), 334.0),
    "trace": (Link(trace="poisson:12:0", delay_ms=20, queue_packets=80), 60.0),
}
"""Link and window (about 1 BDP) of each measurement."""


def run(args: Namespace) -> int:
    """Measure, and print a line for each link."""
    links = Countdown(tuple(LINKS), lambda name: f"measuring {name}")
    result = bench(args.envs, args.steps, args.repeats, links)
    if args.json != "-":
        for name, row in result["links"].items():
            print(
                f"{name}: {row['ns_per_packet']:.1f} ns/packet, "
                f"{row['env_steps_per_second'] / 1e6:.2f} M env-steps/s, "
                f"reference {row['reference_ns_per_packet']:.0f} ns/packet "
                f"({row['times_reference']:.0f} times)"
            )
    emit_json(args.json, result)
    return 0


def bench(
    n_envs: int, steps: int, repeats: int, links: Iterable[str] = tuple(LINKS)
) -> dict[str, Any]:
    """Measure; every figure is the best of ``repeats`` (the least disturbed) on one core."""
    begin = time.perf_counter()
    Simulator(1).advance(STEP_NS)
    start_seconds = time.perf_counter() - begin
    rows = {}
    for name in links:
        link, window = LINKS[name]
        kernel_ns, rate = min(
            (_kernel(link, window, n_envs, steps) for _ in range(repeats)), key=lambda row: row[0]
        )
        reference_ns = min(_reference(link, window) for _ in range(min(repeats, 3)))
        rows[name] = {
            "ns_per_packet": kernel_ns,
            "env_steps_per_second": rate,
            "reference_ns_per_packet": reference_ns,
            "times_reference": reference_ns / kernel_ns,
        }
    return {"envs": n_envs, "steps": steps, "start_seconds": start_seconds, "links": rows}


def _kernel(link: Link, window: float, n_envs: int, steps: int) -> tuple[float, float]:
    simulator = Simulator(n_envs)
    for n in range(n_envs):
        simulator.load(n, Scenario("bench", link, (Flow(cwnd=window),), seed=n))
    for _ in range(50):
        simulator.advance(STEP_NS)
    before = int(simulator.flows[:, col.SENT].sum())
    begin = time.perf_counter()
    for _ in range(steps):
        simulator.control[:, CWND] = window
        simulator.advance(STEP_NS)
    seconds = time.perf_counter() - begin
    packets = int(simulator.flows[:, col.SENT].sum()) - before
    return seconds / packets * 1e9, n_envs * steps / seconds


def _reference(link: Link, window: float) -> float:
    reference = Reference(Scenario("bench", link, (Flow(cwnd=window),)))
    reference.run(50 * STEP_NS)
    before = len(reference.records)
    begin = time.perf_counter()
    for _ in range(100):
        for flow in reference.flows:
            flow.held.cwnd = window
        reference.run(STEP_NS)
    seconds = time.perf_counter() - begin
    return seconds / (len(reference.records) - before) * 1e9
