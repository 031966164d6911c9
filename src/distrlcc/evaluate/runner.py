"""Runs contenders on scenarios: every scenario of a suite in one batched simulator call.

Utilisation, throughput, delays and losses are taken after the first second, when slow start is
over, and the first second has its own figure.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distrlcc.env.batch import LinkBatch
from distrlcc.evaluate.contender import Contender
from distrlcc.evaluate.recorder import Recorder
from distrlcc.evaluate.scores import SchemeScores, Series
from distrlcc.sim import layout as col
from distrlcc.sim.scenario import Scenario
from distrlcc.sim.suites import check_agents, with_scheme
from distrlcc.types import NANOSECONDS, PACKET_BYTES

WARMUP_S = 1.0
_MBIT = 8e-6 * PACKET_BYTES

Floats = NDArray[np.float64]


def evaluate(
    contender: Contender,
    scenarios: list[Scenario],
    *,
    seeds: int = 1,
    seed: int = 0,
    series_links: tuple[int, ...] = (),
) -> tuple[SchemeScores, list[Series]]:
    """Measure a contender on every scenario, once per seed.

    Args:
        contender: The scheme or policy.
        scenarios: L links.
        seeds: Runs of each link, S, which differ in random losses, in where a trace starts, in the
            schemes' random phases and in a sampling policy's draws.
        seed: The first seed.
        series_links: Links whose time series are kept, from the first seed.

    Returns:
        Scores ``[L, S]``, and one series for each of `series_links`.

    Raises:
        ConfigError: A link's first flow is not its only agent; see `distrlcc.evaluate.shared_run`.
    """
    for scenario in scenarios:
        check_agents(scenario)
    columns: list[dict[str, Floats]] = []
    kept: list[Series] = []
    for k in range(seeds):
        measured, series = _run(
            contender, [reseed(s, seed + k) for s in scenarios], seed + k,
            series_links if k == 0 else (),
        )  # fmt: skip
        columns.append(measured)
        kept += series
    stacked = {name: np.stack([c[name] for c in columns], axis=1) for name in columns[0]}
    links = tuple(s.name for s in scenarios)
    learned = contender.policy is not None
    return SchemeScores(scheme=contender.name, links=links, learned=learned, **stacked), kept


def reseed(scenario: Scenario, seed: int) -> Scenario:
    """Return a link's run number ``seed``: other losses, and another start of its trace."""
    if seed == 0:
        return scenario
    link = scenario.link
    if link.trace is not None:
        link = replace(link, trace_start_s=link.trace_start_s + 7.3 * seed)
    return replace(scenario, seed=scenario.seed + 1_000_003 * seed, link=link)


class _Totals:
    """Counts since the start of each link's flow 0, as they were when a link was last taken."""

    COLUMNS = (col.SENT, col.DELIVERED, col.DROPPED, col.RANDOM_LOST, col.QUEUEING_SUM)

    def __init__(self, count: int) -> None:
        self.counts = np.zeros((count, len(self.COLUMNS)))
        self.histograms = np.zeros((2, count, col.HISTOGRAM_BINS))
        self._taken = np.zeros(count, bool)

    def take(self, batch: LinkBatch, due: NDArray[np.bool_]) -> None:
        """Keep the present counts of links that are due for the first time."""
        rows = np.flatnonzero(due & ~self._taken)
        if len(rows):
            flows = rows * batch.n_flows
            self.counts[rows] = batch.simulator.flows[flows][:, self.COLUMNS]
            self.histograms[:, rows] = batch.simulator.histograms[:, flows]
            self._taken[rows] = True


def _run(
    contender: Contender, scenarios: list[Scenario], seed: int, series_links: tuple[int, ...]
) -> tuple[dict[str, Floats], list[Series]]:
    count, n_flows = len(scenarios), max(len(s.flows) for s in scenarios)
    config = contender.env_config()
    batch = LinkBatch(count, config, n_flows=n_flows, with_histograms=True, with_labels=False)
    for n, scenario in enumerate(scenarios):
        batch.load(n, with_scheme(scenario, contender.scheme))
    contender.tell(batch)
    actor = contender.actor(count, seed) if contender.policy is not None else None
    recorders = [Recorder(batch, n, contender, scenarios[n].name) for n in series_links]
    ends = np.array([round(s.duration_s * NANOSECONDS) for s in scenarios])
    starts = np.array([round(s.flows[0].start_s * NANOSECONDS) for s in scenarios])
    starts = np.minimum(starts, ends // 2)
    warmup = starts + np.minimum(int(WARMUP_S * NANOSECONDS), (ends - starts) // 2)
    shared = np.array([len(s.flows) > 1 for s in scenarios])
    before, after = _Totals(count), _Totals(count)
    # Sums over steps, first during the warm-up and then after it.
    sums = np.zeros((2, len(_SUMS), count))
    observation = batch.first_observation(np.arange(count))
    everyone, over = np.arange(count), np.zeros(count, bool)
    now = batch.simulator.links[:, col.NOW].copy()
    while (now < ends).any():
        phase, running = (now >= warmup).astype(int), (now >= starts) & (now < ends)
        if actor is None:
            batch.advance()
        else:
            observation, _ = batch.step(actor.act(observation))
        view, stats = batch.view(), batch.stats()
        step = [view.used, view.capacity, stats.rtt_sum, stats.acked, stats.duration]
        sums[phase, :, everyone] += np.where(running, step, 0.0).T
        for recorder in recorders:
            recorder.record(running)
        now = np.where(over, ends, batch.simulator.links[:, col.NOW])
        before.take(batch, now >= warmup)
        after.take(batch, now >= ends)
        for link in np.flatnonzero((now >= ends) & ~over):
            batch.retire(int(link))
        over = now >= ends
    return _measure(before, after, sums, shared), [r.series() for r in recorders]


_SUMS = ("used", "capacity", "rtt", "acked", "seconds")


def _measure(
    before: _Totals, after: _Totals, sums: Floats, shared: NDArray[np.bool_]
) -> dict[str, Floats]:
    sent, delivered, dropped, random_lost, queueing = (after.counts - before.counts).T
    queueing_bins, rtt_bins = after.histograms - before.histograms
    used, capacity, rtt, acked, seconds = sums[1]
    utilisation = used / np.maximum(capacity, 1e-9)
    mean_rtt = np.where(acked > 0, 1e3 * rtt / np.maximum(acked, 1), np.nan)
    queueing_ms = np.where(delivered > 0, queueing / np.maximum(delivered, 1) * 1e-6, np.nan)
    # What is not queueing: exact where the path changes too.
    base_ms = mean_rtt - queueing_ms
    # Beside other flows a flow's power is of its own share.
    share = np.where(shared, acked / np.maximum(capacity, 1e-9), utilisation)
    return {
        "throughput_mbps": acked * _MBIT / seconds,
        "utilisation": utilisation,
        "first_second_utilisation": sums[0, 0] / np.maximum(sums[0, 1], 1e-9),
        "mean_queueing_delay_ms": queueing_ms,
        "p95_queueing_delay_ms": _percentile(queueing_bins, 0.95),
        "mean_rtt_ms": mean_rtt,
        "p95_rtt_ms": _percentile(rtt_bins, 0.95),
        "base_rtt_ms": base_ms,
        "queueing_delay_rtt": queueing_ms / base_ms,
        "loss": (dropped + random_lost) / np.maximum(sent, 1),
        "excess_loss": dropped / np.maximum(sent, 1),
        "power": np.where(acked > 0, share * base_ms / mean_rtt, 0.0),
    }


def _percentile(bins: Floats, share: float) -> Floats:
    """Return the percentile of histograms ``[L, B]``, ms, taken inside the bin linearly."""
    counts = np.cumsum(bins, axis=1)
    target = share * counts[:, -1]
    place = np.argmax(counts >= target[:, None], axis=1)
    rows = np.arange(len(bins))
    below = counts[rows, place] - bins[rows, place]
    inside = (target - below) / np.maximum(bins[rows, place], 1)
    edges = 0.1 * (1.01 ** np.arange(bins.shape[1] + 1) - 1)
    value = edges[place] + inside * (edges[place + 1] - edges[place])
    return np.where(counts[:, -1] > 0, value, np.nan)
