"""How flows share a link: Jain's index, convergence after a join, friendliness.

All agents of a scenario run the policy, or the scheme where a scheme is measured; the other flows
run their own schemes. `run_shared` keeps what each flow does over time, `fairness_of` scores it.

Rates are means over windows of `WINDOW_S` that slide by a bucket. A flow counts in a window that
lies within its running time.

* Jain's index of F rates x is `(sum x)^2 / (F sum x^2)`, from 1/F to 1 (Jain, Chiu and Hawe,
  https://arxiv.org/abs/cs/9809099).
* Settled windows begin `SETTLE_S` or more after the last join or leaving.
* A join has converged once every flow is within `TOLERANCE` of an equal share in each window, for
  `HOLD_RTTS` of the longest base RTT.
* PCC does so with windows of 1 s, 25% and 5 s (Dong et al., NSDI 2015).
* A join that has not converged before flows join or leave again has no time, and is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.evaluation.bootstrap import CONFIDENCE
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.runner import MBIT, WARMUP_S, loaded, reseed, simulate
from distrlcc.evaluation.scores import BUCKET_S, FAIRNESS_METRICS, VoidRun, defined_mean, shown
from distrlcc.evaluation.summary import MeanInterval, figure, means_table, over_links, void_note
from distrlcc.evaluation.tables import Table
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import unique_names
from distrlcc.types import NANOSECONDS, FloatArray

WINDOW_S = 1.0
SETTLE_S = 3.0
TOLERANCE = 0.25
HOLD_RTTS = 20.0
LEAST_PACKETS = 10  # of an equal share in a window, for its rates to say something
LEAST_S = 2.0  # scenarios are not shorter: the warm-up, and one window
_WIDTH = round(WINDOW_S / BUCKET_S)

_FLOW = (col.STEP_ACKED, col.QUEUEING_SUM, col.SENT, col.DROPPED)
_CUMULATIVE = slice(1, 4)


@dataclass(frozen=True)
class SharedRun:
    """One link's run: F flows in B buckets of `BUCKET_S`; packets where nothing else is said."""

    scenario: Scenario  # as it was run: with the agents as agents
    acked: FloatArray  # acknowledged, [F, B]
    queueing_s: FloatArray  # time that these waited in the queue, s, summed, [F, B]
    sent: FloatArray
    dropped: FloatArray  # by the queue, [F, B]
    capacity: FloatArray  # what the link could carry, [B]
    used: FloatArray  # and carried, [B]
    base_rtt_s: FloatArray  # each flow's round trip without a queue, [F], in the mean over time
    stops_s: FloatArray  # when each flow stopped, was complete, or the scenario was over, s [F]
    broken: str = ""  # why the run does not count; empty: it does

    @property
    def agents(self) -> int:
        """Number of agents: the first of the flows."""
        return sum(flow.scheme == "agent" for flow in self.scenario.flows)

    @property
    def is_coarse(self) -> bool:
        """Whether a window is less than a round trip, or less than `LEAST_PACKETS` each."""
        packets, flows = _WIDTH * float(self.capacity.mean()), len(self.acked)
        return flows > 1 and (packets < LEAST_PACKETS * flows or max(self.base_rtt_s) > WINDOW_S)


def run_shared(
    contender: Contender, scenarios: Sequence[Scenario], seed: int = 0
) -> list[SharedRun]:
    """Run a contender as every agent, once on every scenario, in one batched simulator call."""
    # Each flow's counts and each link's, in buckets.
    seeded = [reseed(scenario, seed) for scenario in scenarios]
    agents = max(sum(flow.scheme == "agent" for flow in s.flows) for s in scenarios)
    batch = loaded(contender, seeded, replace(contender.env_config(), agents=agents))
    count, n_flows = len(scenarios), batch.n_flows
    ends = np.array([round(s.duration_s * NANOSECONDS) for s in seeded])
    buckets = round(float(ends.max()) / NANOSECONDS / BUCKET_S) + 1
    flows = np.zeros((len(_FLOW), count, n_flows, buckets))
    links = np.zeros((3, count, buckets))  # capacity, used, base RTT * capacity
    everyone, counted = np.arange(count), np.zeros((len(_FLOW), count, n_flows))
    complete, broken = np.full(count * n_flows, np.nan), [""] * count
    for then, _ in simulate(contender, batch, seeded, seed, broken):
        running = then < ends
        bucket = np.minimum((then / (BUCKET_S * NANOSECONDS) + 1e-6).astype(int), buckets - 1)
        # What the step added; some columns count from the beginning on.
        counts = batch.simulator.flows[:, _FLOW].T.reshape(counted.shape).astype(float)
        added = counts.copy()
        added[_CUMULATIVE] -= counted[_CUMULATIVE]
        counted = counts
        flows[:, everyone, :, bucket] += (added * running[:, None]).transpose(1, 0, 2)
        capacity, used, base = batch.simulator.results[:, [col.CAPACITY, col.USED, col.BASE_RTT]].T
        links[:, everyone, bucket] += running * np.array([capacity, used, base * capacity])
        complete = np.fmin(complete, batch.simulator.completions())
    # Each scenario's own flows and time; a trace's grain is the ms.
    traced = [scenario.link.trace is not None for scenario in scenarios]
    found = []
    for n, scenario in enumerate(scenarios):
        end = scenario.duration_s
        length = round(end / BUCKET_S)
        acked, queueing, sent, dropped = flows[:, n, : len(scenario.flows), :length]
        capacity, used, weighted = links[:, n, :length]
        extra = np.array([flow.extra_rtt_ms * 1e-3 for flow in scenario.flows])
        base = np.maximum(weighted.sum() / max(capacity.sum(), 1e-9) + extra, 1e-3 * traced[n])
        waited = queueing / NANOSECONDS
        stops = [min(math.inf if f.stop_s is None else f.stop_s, end) for f in scenario.flows]
        stops_s = np.fmin(stops, complete.reshape(count, n_flows)[n, : len(stops)])
        sums = acked, waited, sent, dropped, capacity, used
        found.append(SharedRun(scenario, *sums, base, stops_s, broken[n]))
    return found


def jain_index(rates: FloatArray) -> FloatArray:
    """Return Jain's index of rates ``[F, ...]``; NaN: fewer than two flows run, or none sends."""
    runs = np.isfinite(rates)
    x = np.where(runs, rates, 0.0)
    squares = runs.sum(axis=0) * np.square(x).sum(axis=0)
    defined = (runs.sum(axis=0) > 1) & (squares > 0)
    return np.where(defined, np.square(x.sum(axis=0)) / np.where(defined, squares, 1.0), np.nan)


def windowed_rates(run: SharedRun) -> FloatArray:
    """Return rates, Mbit/s ``[F, W]``, of windows from each bucket on; NaN: not all of it runs."""
    rates = run.acked * MBIT / BUCKET_S
    windows = np.lib.stride_tricks.sliding_window_view(rates, _WIDTH, axis=1).mean(axis=2)
    begins = np.arange(windows.shape[1]) * BUCKET_S
    starts, stops = _starts(run), run.stops_s
    inside = (begins >= starts[:, None] - 1e-9) & (begins + WINDOW_S <= stops[:, None] + 1e-9)
    return np.where(inside, windows, np.nan)


def settled(run: SharedRun, windows: int) -> NDArray[np.bool_]:
    """Return which of so many windows are settled, ``[W]``: flows' set has been the same."""
    begins = np.arange(windows) * BUCKET_S
    calm = np.ones(windows, bool)
    for time in _changes(run):
        calm &= (begins + WINDOW_S <= time + 1e-9) | (begins >= time + SETTLE_S - 1e-9)
    return calm


def fairness_of(run: SharedRun) -> dict[str, float]:
    """Return one run's scores by `FAIRNESS_METRICS`; NaN: nothing to measure, or it is void."""
    if run.broken:
        return dict.fromkeys((m.key for m in FAIRNESS_METRICS), math.nan)
    rates = windowed_rates(run)
    calm = settled(run, rates.shape[1])
    times = convergence_times(run)
    warm = slice(round(WARMUP_S / BUCKET_S), None)
    acked, sent, dropped = (x[:, warm].sum() for x in (run.acked, run.sent, run.dropped))
    delay = (run.queueing_s[:, warm] / run.base_rtt_s[:, None]).sum()
    share = _share(run, rates[:, calm])
    return {
        "jain": defined_mean(jain_index(rates)[calm]),
        "converged": defined_mean(np.isfinite(times).astype(float)),
        "convergence_s": defined_mean(times),
        "share": share,
        "tolerable": float(0.25 <= share <= 0.75) if math.isfinite(share) else math.nan,
        "utilisation": float(run.used[warm].sum() / max(run.capacity[warm].sum(), 1e-9)),
        "queueing_delay_rtt": float(delay / acked) if acked else math.nan,
        "excess_loss": float(dropped / max(sent, dropped, 1.0)),
    }


def running_rates(run: SharedRun) -> FloatArray:
    """Return each flow's throughput while it runs, Mbit/s ``[F]``."""
    length = np.maximum(run.stops_s - _starts(run), BUCKET_S)
    return np.asarray(run.acked.sum(axis=1) * MBIT / length)


def convergence_times(run: SharedRun) -> FloatArray:
    """Return each join's convergence time, s ``[J]``; NaN of those that have not converged."""
    rates = windowed_rates(run)
    starts = _starts(run)
    changes = _changes(run)
    hold = max(1, math.ceil(HOLD_RTTS * float(run.base_rtt_s.max()) / BUCKET_S))
    times = []
    for join in sorted({s for s, stop in zip(starts, run.stops_s, strict=True) if 0 < s < stop}):
        following = min((t for t in changes if t > join), default=run.scenario.duration_s)
        first = math.ceil(join / BUCKET_S - 1e-9)
        last = min(math.floor(following / BUCKET_S + 1e-9) - _WIDTH, rates.shape[1] - 1)
        section = rates[:, first : max(last + 1, first)]  # negative: from the back
        x = section[np.isfinite(section).any(axis=1)]
        fair = np.maximum(x.sum(axis=0) / max(len(x), 1), 1e-9)
        close = (np.abs(x / fair - 1.0) <= TOLERANCE).all(axis=0)
        runs = np.convolve([False, *close], np.ones(hold), "valid")[1:]  # too few windows: 0
        held = np.flatnonzero(runs >= hold - 0.5)
        times.append((first + int(held[0])) * BUCKET_S - join if len(held) else math.nan)
    return np.array(times)


def _share(run: SharedRun, rates: FloatArray) -> float:
    """Return the share of an agent in what it and a scheme's flow deliver, in the mean of each."""
    own, others = rates[: run.agents], rates[run.agents :]
    if not len(others):
        return math.nan
    both = np.isfinite(own).any(axis=0) & np.isfinite(others).any(axis=0)
    if not both.any():
        return math.nan
    ours, theirs = np.nanmean(own[:, both]), np.nanmean(others[:, both])
    return float(ours / (ours + theirs)) if ours + theirs > 0 else math.nan


def _starts(run: SharedRun) -> FloatArray:
    return np.array([flow.start_s for flow in run.scenario.flows])


def _changes(run: SharedRun) -> list[float]:
    """Return when flows join or leave, the beginning included, s."""
    starts, stops = _starts(run), run.stops_s
    ran, left = starts < stops, stops < run.scenario.duration_s
    return sorted({0.0, *starts[ran], *stops[ran & left]})


@dataclass(frozen=True)
class SuiteFairness:
    """A contender's figures on a suite's links."""

    contender: str
    learned: bool
    suite: str
    values: FloatArray  # [M, L, S], in the order of `FAIRNESS_METRICS`; NaN: nothing to measure
    runs: tuple[SharedRun, ...]  # those of the first seed, one for each link
    void: tuple[VoidRun, ...] = ()  # runs that do not count: with any there are no means

    @property
    def name(self) -> str:
        """The contender's name as shown."""
        return shown(self.contender) + " (void)" * bool(self.void)

    @cached_property
    def overall(self) -> dict[str, MeanInterval]:
        """Means over links and seeds, with intervals and tails, by metric."""
        values = np.full_like(self.values, math.nan) if self.void else self.values
        return over_links(FAIRNESS_METRICS, values)

    @property
    def notes(self) -> list[str]:
        """Sentences on what does not count, and on the links that means leave out."""
        _, links, seeds = self.values.shape
        said = [void_note(self.void, links * seeds)] if self.void else []
        if coarse := sum(run.is_coarse for run in self.runs):
            said.append(
                f"{self.name} on {self.suite}: on {coarse} of {links} links windows of 1 s are "
                "shorter than a round trip, or hold less than ten packets of each flow: "
                "there Jain's index and convergence show how flows take turns, not their shares."
            )
        for m, values in zip(FAIRNESS_METRICS, self.values, strict=True):
            lacking = int((~np.isfinite(values)).all(axis=1).sum())
            if 0 < lacking < links and m.key in ("jain", "share") and not self.void:
                rest = f"{lacking} of {links} links, where nothing was delivered or no window is"
                said.append(f"{self.name} on {self.suite}: {m.label} leaves out {rest} settled.")
        return said


def measure(
    contender: Contender, suite: str, scenarios: Sequence[Scenario], seeds: int = 1
) -> SuiteFairness:
    """Run a contender on a suite's links, once per seed."""
    by_seed = [run_shared(contender, scenarios, seed) for seed in range(seeds)]
    scores = [[fairness_of(run) for run in runs] for runs in by_seed]  # [S][L]
    values = np.array(
        [[[one[m.key] for one in row] for row in scores] for m in FAIRNESS_METRICS]
    ).swapaxes(1, 2)
    name, learned = contender.name, contender.learned
    broken = [(seed, run) for seed, runs in enumerate(by_seed) for run in runs if run.broken]
    void = tuple(VoidRun(name, run.scenario.name, seed, run.broken) for seed, run in broken)
    return SuiteFairness(name, learned, suite, values, tuple(by_seed[0]), void)


def table(suite: str, rows: Sequence[SuiteFairness]) -> Table:
    """Return a suite's table: a row for each contender, the metrics that any has a mean of."""
    found = [row.overall for row in rows]
    metrics = [m for m in FAIRNESS_METRICS if any(math.isfinite(o[m.key].mean) for o in found)]
    lines = [(shown(row.contender), row.overall, row.learned, bool(row.void)) for row in rows]
    return means_table(suite, "flows", lines, metrics)


def to_json(rows: Sequence[SuiteFairness]) -> dict[str, Any]:
    """Return the figures; docs/fairness.md says which keys they have."""
    suites: dict[str, Any] = {}
    for row in rows:
        overall = {key: value.to_json(tails=True) for key, value in row.overall.items()}
        names = unique_names(run.scenario.name for run in row.runs)
        links = {k: _link(row.runs[n], row.values[:, n]) for n, k in enumerate(names)}
        told = {"learned": row.learned, "overall": overall}
        told |= {"void_runs": [asdict(run) for run in row.void], "links": links}
        suites.setdefault(row.suite, {})[row.contender] = told
    return {
        "format": "distrlcc-fairness",
        "version": 1,
        "confidence": CONFIDENCE,
        "seeds": rows[0].values.shape[2],
        "metrics": {m.key: m.describe() for m in FAIRNESS_METRICS},
        "suites": suites,
    }


def _link(run: SharedRun, values: FloatArray) -> dict[str, Any]:
    rows = zip(FAIRNESS_METRICS, values, strict=True)
    means = {m.key: figure(defined_mean(row)) for m, row in rows}
    shown = ("scheme", "start_s", "stop_s", "extra_rtt_ms")
    flows = [
        {name: getattr(flow, name) for name in shown} | {"throughput_mbps": figure(rate)}
        for flow, rate in zip(run.scenario.flows, running_rates(run).tolist(), strict=True)
    ]
    return {**means, "flows": flows}
