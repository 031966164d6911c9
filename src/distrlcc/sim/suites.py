"""Named suites of scenarios: the same suite, split and index mean the same link everywhere.

A suite is a function from (split, index) to a `Scenario`. The splits ``train``, ``validation``
(which chooses among checkpoints) and ``test`` (which reports) draw from the same distribution with
seeds that never meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from distrlcc.config import from_toml
from distrlcc.errors import ConfigError, unknown_name
from distrlcc.seeding import stream_key, uniform
from distrlcc.sim.indigo_links import GRID, LINKS
from distrlcc.sim.scenario import Change, Flow, Link, Scenario
from distrlcc.sim.trace import load_trace
from distrlcc.types import PACKET_BYTES

SPLITS = ("train", "validation", "test")
TEST_LINKS = 512
"""Scenarios of a generated suite that are evaluated unless another number is asked for."""


@dataclass(frozen=True)
class Suite:
    """A family of scenarios."""

    name: str
    build: Callable[[str, int], Scenario]
    """From split and index to the scenario."""
    sizes: tuple[int | None, int]
    """Scenarios in train and in the held-out splits; None: as many as wanted."""

    def size(self, split: str) -> int | None:
        """Return how many scenarios a split has; None: as many as wanted."""
        return self.sizes[0 if split == "train" else 1]

    def scenario(self, split: str, index: int) -> Scenario:
        """Return a scenario; a finite suite starts again after its last."""
        size = self.size(split)
        return self.build(split, index if size is None else index % size)

    def scenarios(self, split: str, count: int | None = None) -> list[Scenario]:
        """Return the first scenarios of a split: ``count``, or all (`TEST_LINKS` if endless)."""
        size = self.size(split)
        if count is None:
            count = TEST_LINKS if size is None else size
        elif size is not None:
            count = min(count, size)
        return [self.build(split, index) for index in range(count)]


def _draws(suite: str, split: str, index: int, count: int) -> list[float]:
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    key = stream_key(0, f"suite/{suite}/{split}")
    return [float(u) for u in uniform(key, index, np.arange(count))]


def _between(u: float, low: float, high: float) -> float:
    return float(low * (high / low) ** u)


def bdp_packets(rate_mbps: float, rtt_ms: float) -> float:
    """Return a bandwidth-delay product in packets."""
    return rate_mbps * rtt_ms * 1e3 / (8 * PACKET_BYTES)


def _random(split: str, index: int) -> Scenario:
    """5-100 Mbit/s (log-uniform), RTT 10-100 ms, queue 0.5-4 BDP, loss to 1% on a quarter."""
    u = _draws("random", split, index, 5)
    rate = round(_between(u[0], 5.0, 100.0), 3)
    rtt = round(10.0 + 90.0 * u[1], 3)
    queue = max(2, round(_between(u[2], 0.5, 4.0) * bdp_packets(rate, rtt)))
    loss = round(0.01 * u[4], 6) if u[3] < 0.25 else 0.0
    link = Link(rate_mbps=rate, delay_ms=rtt / 2, queue_packets=queue, loss=loss)
    return Scenario(f"random/{split}/{index}", link, seed=index)


def _dynamic(split: str, index: int) -> Scenario:
    """Random links whose rate and delay step every 1.5 to 4 s."""
    u = _draws("dynamic", split, index, 44)
    rate = round(_between(u[0], 5.0, 60.0), 3)
    delay = round(5.0 + 35.0 * u[1], 3)
    queue = max(8, round(_between(u[2], 1.0, 4.0) * bdp_packets(rate, 2 * delay)))
    changes, time = [], 0.0
    for k in range(10):
        a, b, c, d = u[4 + 4 * k : 8 + 4 * k]
        time += 1.5 + 2.5 * a
        new_rate = round(min(80.0, max(3.0, rate * 4.0 ** (2 * b - 1))), 3)
        new_delay = round(min(60.0, max(5.0, delay * 2.0 ** (2 * c - 1))), 3)
        kind = int(3 * d)
        changes.append(
            Change(
                round(time, 3),
                rate_mbps=new_rate if kind != 1 else None,
                delay_ms=new_delay if kind != 0 else None,
            )
        )
    link = Link(rate_mbps=rate, delay_ms=delay, queue_packets=queue, changes=tuple(changes))
    return Scenario(f"dynamic/{split}/{index}", link, duration_s=20.0, seed=index)


def _cellular(split: str, index: int) -> Scenario:
    """Generated cellular-like traces, RTT 20-100 ms, queue of 50-500 packets."""
    u = _draws("cellular", split, index, 4)
    seed = len(SPLITS) * (index % 256) + SPLITS.index(split)
    link = Link(
        trace=f"cellular:{seed}",
        trace_start_s=round(60 * u[0], 3),
        delay_ms=round(10 + 40 * u[1], 3),
        queue_packets=round(_between(u[2], 50, 500)),
    )
    return Scenario(f"cellular/{split}/{index}", link, duration_s=20.0, seed=index)


def _indigo(split: str, index: int) -> Scenario:
    return Scenario(f"indigo/{index}", LINKS[index], seed=index)


def _grid(split: str, index: int) -> Scenario:
    name, link = GRID[index]
    return Scenario(f"indigo-grid/{name}", link, duration_s=30.0, seed=index)


SUITES: dict[str, Suite] = {
    "random": Suite("random", _random, (None, TEST_LINKS)),
    "dynamic": Suite("dynamic", _dynamic, (None, TEST_LINKS)),
    "cellular": Suite("cellular", _cellular, (None, 64)),
    "indigo": Suite("indigo", _indigo, (len(LINKS), len(LINKS))),
    "indigo-grid": Suite("indigo-grid", _grid, (len(GRID), len(GRID))),
}


def trace_suite(paths: list[str], *, duration_s: float | None = None) -> Suite:
    """Make a suite of trace files: 20 ms one-way delay and a queue of 100 packets, whole length.

    Raises:
        TraceError: A file is no trace.
    """
    scenarios = []
    for path in paths:
        seconds = load_trace(path).period_ns / 1e9 if duration_s is None else duration_s
        link = Link(trace=path, delay_ms=20.0, queue_packets=100)
        name = f"trace/{Path(path).name}"
        scenarios.append(Scenario(name, link, duration_s=min(seconds, 1000.0)))
    return Suite("trace", partial(_listed, tuple(scenarios)), (len(scenarios), len(scenarios)))


def _listed(scenarios: tuple[Scenario, ...], split: str, index: int) -> Scenario:
    return scenarios[index]


@dataclass(frozen=True)
class _SuiteFile:
    scenarios: tuple[Scenario, ...]
    name: str = ""


def _suite_file(path: Path) -> Suite:
    """Read a suite from TOML: one scenario, or a list of tables ``[[scenarios]]``."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    if "[[scenarios]]" in text or "scenarios =" in text:
        loaded = from_toml(_SuiteFile, text, source=str(path))
        scenarios, name = loaded.scenarios, loaded.name or path.stem
    else:
        scenarios, name = (from_toml(Scenario, text, source=str(path)),), path.stem
    base = path.parent
    scenarios = tuple(replace(s, link=_resolve_trace(s.link, base)) for s in scenarios)
    return Suite(name, partial(_listed, scenarios), (len(scenarios), len(scenarios)))


def _resolve_trace(link: Link, base: Path) -> Link:
    if link.trace is None or ":" in link.trace or Path(link.trace).is_absolute():
        return link
    return replace(link, trace=str(base / link.trace))


def load_suite(name: str) -> Suite:
    """Return the suite of a name, a TOML file (``*.toml``) or a folder of traces.

    Raises:
        ConfigError: There is no such suite, or the file is malformed.
        TraceError: A file of the folder is no trace.
    """
    if name in SUITES:
        return SUITES[name]
    path = Path(name)
    if path.suffix == ".toml":
        return _suite_file(path)
    if path.is_dir():
        files = sorted(str(p) for p in path.iterdir() if p.suffix in (".up", ".down", ".trace"))
        if not files:
            raise ConfigError(f"{name}: no trace (*.up, *.down, *.trace) stands in this folder")
        return trace_suite(files)
    raise unknown_name("suite (or TOML file, or folder of traces)", name, SUITES)


def scenario_by_id(identifier: str) -> Scenario:
    """Return the scenario of an id such as ``random/test/17`` or ``indigo/4``.

    Raises:
        ConfigError: There is no such suite, split or index.
    """
    suite_name, *rest = identifier.split("/")
    suite = SUITES.get(suite_name)
    if suite is None:
        raise unknown_name("suite", suite_name, SUITES)
    split = rest[0] if len(rest) == 2 else "test"
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    if not rest or not rest[-1].isdigit():
        raise ConfigError(f"scenario {identifier!r}: expected SUITE/INDEX or SUITE/SPLIT/INDEX")
    index, size = int(rest[-1]), suite.size(split)
    if size is not None and index >= size:
        raise ConfigError(f"scenario {identifier!r}: {suite_name} has {size}, from 0")
    return suite.scenario(split, index)


def with_scheme(scenario: Scenario, scheme: str) -> Scenario:
    """Return a scenario whose agents run a scheme instead."""
    flows = tuple(
        Flow(scheme, f.start_s, f.stop_s, f.extra_rtt_ms) if f.scheme == "agent" else f
        for f in scenario.flows
    )
    return replace(scenario, flows=flows)


def step_count(scenario: Scenario, step_s: float) -> int:
    """Return how many steps of a length a scenario lasts."""
    return max(1, math.ceil(scenario.duration_s / step_s - 1e-9))
