"""Runs contenders in the simulator: every scenario of a suite and every seed in one batched call.

A trace longer than `STRETCH_S` is cut into stretches that run side by side. A sender begins anew in
each, and counts are added up. Utilisation, throughput, delays and losses are taken after the first
second, when slow start is over, and the first second has its own figure.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.state import CWND, PACING
from distrlcc.env.batch import LinkBatch
from distrlcc.env.config import EnvConfig
from distrlcc.env.rewards import LinkView
from distrlcc.errors import ConfigError, counted, once
from distrlcc.evaluation.contender import Contender
from distrlcc.evaluation.scores import SchemeScores, Series, bucket_edges, bucket_sums, share_of
from distrlcc.plugins import blame
from distrlcc.sim import layout as col
from distrlcc.sim import suites
from distrlcc.sim.scenario import Flow, Scenario
from distrlcc.sim.simulator import BROKEN
from distrlcc.types import NANOSECONDS, PACKET_BYTES, FloatArray, IntervalStats

Indices = NDArray[np.int64]

WARMUP_S = 1.0
STRETCH_S = 60.0
SCHEME_STEP_MS = 50.0  # a step that decides nothing: schemes act on each acknowledgement
_MOST_RUNS = 1024  # runs in one call; more take memory and no less time
LEAST_SECONDS = 0.1  # how long a flow sends at least that is measured
MBIT = 8e-6 * PACKET_BYTES  # Mbit of a packet


def evaluate(
    contender: Contender,
    scenarios: list[Scenario],
    *,
    seeds: int = 1,
    series_links: tuple[int, ...] = (),
    show: Callable[[float], None] = lambda share: None,
    run: Callable[..., Iterator[float]] | None = None,
) -> tuple[SchemeScores, list[Series]]:
    """Return a contender's scores ``[L, S]``, and the first seed's series of each `series_links`.

    A link's S runs differ in random losses, in where a trace starts, in the schemes' random phases
    and in a sampling policy's draws. ``show`` takes the share that is done, again and again. Parts
    are run by `run_parts` unless by another.
    """
    for scenario in scenarios:
        check_scenario(scenario)
    # Each link's run of each seed in its stretches; one call runs many.
    runs = [
        (seed * len(scenarios) + link, part)
        for seed in range(seeds)
        for link, scenario in enumerate(scenarios)
        for part in stretches(reseed(scenario, seed))
    ]
    counted = Counted(seeds * len(scenarios))
    broken = [""] * (seeds * len(scenarios))
    steps: dict[int, list[FloatArray]] = {link: [] for link in series_links}
    for first in range(0, len(runs), _MOST_RUNS):
        parts = runs[first : first + _MOST_RUNS]
        for share in (run or run_parts)(contender, parts, counted, broken, steps, first):
            show((first + share * len(parts)) / len(runs))
    figures = {
        name: values.reshape(seeds, len(scenarios)).T
        for name, values in _measure(counted, scenarios * seeds).items()
    }
    names = tuple(s.name for s in scenarios)
    reasons = {divmod(run, len(names))[::-1]: why for run, why in enumerate(broken) if why}
    series = [
        _series(contender, names[link], kept)
        for link, kept in steps.items()
        if (link, 0) not in reasons
    ]
    digests = tuple(map(suites.digest, scenarios))
    scores = SchemeScores(contender.name, names, figures, contender.learned, reasons, digests)
    return scores, series


def suite_links(suite: str, links: int | None, usual: int | None = None) -> list[Scenario]:
    """Return a suite's test links, at most so many, or as usual; warn where there are fewer."""
    found = suites.load_suite(suite).scenarios("test", links or usual)
    if (links or 0) > len(found):
        has = counted(len(found))
        warnings.warn(f"{suite} has {has}, fewer than the {links} asked for", stacklevel=3)
    return found


def links_of(
    suite: str, traces: list[str], links: int | None, usual: int | None = None, **link: Any
) -> list[Scenario]:
    """Return a suite's links, as `suite_links` does, and those of traces; no name means no suite.

    ``link`` is what `trace_suite` takes. A suite's function may repeat a name, which gets numbers.
    Raises ConfigError if a trace is there twice, and others.
    """
    if links and not suite:
        raise ConfigError("--links is for --suite; each named --trace runs")
    found = suite_links(suite, links, usual) if suite else []
    once(traces, "--trace: ")
    traced = suites.trace_suite(traces, **link).scenarios("test") if traces else []
    names = {scenario.name for scenario in found}
    once([*names, *(scenario.name for scenario in traced)], f"--suite {suite} and --trace: ")
    for scenario in found + traced:
        check_scenario(scenario)
    numbered = suites.unique_names(scenario.name for scenario in found + traced)
    return [replace(one, name=n) for one, n in zip(found + traced, numbered, strict=True)]


def check_scenario(scenario: Scenario) -> None:
    """Refuse a scenario whose first flow cannot be measured alone."""
    suites.check_agents(scenario)
    first = scenario.flows[0]
    stop_s = math.inf if first.stop_s is None else first.stop_s
    if first.packets is not None:
        raise ConfigError(
            f"{scenario.name}: its first flow ends after some packets; expected one that sends "
            "on (distrlcc fairness measures flows of a size)"
        )
    if min(stop_s, scenario.duration_s) - first.start_s < LEAST_SECONDS:
        raise ConfigError(f"{scenario.name}: its first flow sends for less than {LEAST_SECONDS} s")


def stretches(scenario: Scenario) -> list[Scenario]:
    """Return a scenario, or that of a long trace as stretches of the same length, one flow each."""
    count, link = math.ceil(scenario.duration_s / STRETCH_S), scenario.link
    if link.trace is None or link.changes or count == 1 or scenario.flows != (Flow(),):
        return [scenario]
    length = scenario.duration_s / count
    parts = [replace(link, trace_start_s=link.trace_start_s + k * length) for k in range(count)]
    return [
        replace(scenario, link=part, duration_s=length, seed=scenario.seed + 7_919 * k)
        for k, part in enumerate(parts)
    ]


def reseed(scenario: Scenario, seed: int) -> Scenario:
    """Return a link's run number ``seed``: other losses, and another start of its trace."""
    if seed == 0:
        return scenario
    link = scenario.link
    if link.trace is not None:
        link = replace(link, trace_start_s=link.trace_start_s + 7.3 * seed)
    return replace(scenario, seed=scenario.seed + 1_000_003 * seed, link=link)


def loaded(
    contender: Contender, scenarios: Sequence[Scenario], config: EnvConfig, **more: Any
) -> LinkBatch:
    """Return links of scenarios, with a contender as every agent; ``more`` is `LinkBatch`'s."""
    n_flows = max(len(scenario.flows) for scenario in scenarios)
    batch = LinkBatch(
        len(scenarios), config, n_flows=n_flows, with_labels=False, joining=True, **more
    )
    for n, scenario in enumerate(scenarios):
        batch.load(n, suites.with_scheme(scenario, contender.scheme))
    if contender.preference is not None:
        batch.preference[:] = contender.preference
    return batch


def simulate(
    contender: Contender,
    batch: LinkBatch,
    scenarios: Sequence[Scenario],
    seed: int,
    broken: list[str],
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Run a contender on L links that `loaded` has returned.

    ``broken``, ``[L]``, takes why a link's run does not count: a user's scheme is `BROKEN`, or a
    user's other code raised, which ends all runs. Yields, after each step, the links' times before
    and after it, ns ``[L]``, which stand still once a scenario is over.
    """
    rows = np.arange(len(batch.preference))
    actor = contender.actor(len(rows), seed) if contender.learned else None
    observation = batch.first_observation(rows)
    ends = np.array([float(round(s.duration_s * NANOSECONDS)) for s in scenarios])
    now, over = batch.simulator.links[:, col.NOW].astype(float), np.zeros(len(ends), bool)
    while not over.all():
        try:
            if actor is None:
                batch.advance()
            else:
                observation, _ = batch.step(actor.act(observation))
                actor.reset(batch.active & ~batch.acted)
        except (Exception, SystemExit) as error:
            if not (why := blame(error)):
                raise
            broken[:] = [why] * len(broken)
            return
        for flow in batch.simulator.broken():
            broken[flow // batch.n_flows] = BROKEN
        before, now = now, np.where(over, ends, batch.simulator.links[:, col.NOW])
        yield before, now
        for link in np.flatnonzero((now >= ends) & ~over):
            batch.retire(int(link))
        over = now >= ends


def _series(contender: Contender, link: str, steps: list[FloatArray]) -> Series:
    """Sum up: seconds, capacity, acked, RTTs' sum, base RTT, queue, window, others' acked."""
    seconds, capacity, acked, rtts, base_rtt, queue, cwnd, others = np.array(steps).T
    ends = np.cumsum(seconds)
    edges = bucket_edges(float(ends[-1]))
    length = np.diff(edges)
    packets = bucket_sums(edges, ends, acked)
    waits = bucket_sums(edges, ends, np.maximum(rtts - acked * base_rtt, 0.0))
    mean_delay = 1e3 * waits / np.maximum(packets, 1e-9)
    return Series(
        scheme=contender.name,
        learned=contender.learned,
        link=link,
        edges_s=edges,
        capacity_mbps=bucket_sums(edges, ends, capacity) * MBIT / length,
        rate_mbps=packets * MBIT / length,
        queueing_delay_ms=np.where(packets > 0, mean_delay, np.nan),
        queue_packets=bucket_sums(edges, ends, queue * seconds) / length,
        cwnd_packets=bucket_sums(edges, ends, cwnd * seconds) / length,
        others_mbps=bucket_sums(edges, ends, others) * MBIT / length,
    )


def _step(batch: LinkBatch, n: int, view: LinkView, stats: IntervalStats) -> FloatArray:
    """Return what `_series` sums up, of the newest step of link n."""
    row, acked = n * batch.n_flows, float(stats.acked[n])
    cwnd, pacing = batch.simulator.control[row, [CWND, PACING]].tolist()
    if pacing > 0:
        rtt = float(stats.rtt_sum[n]) / acked if acked else float(view.base_rtt[n])
        cwnd = min(cwnd, pacing * rtt)
    others = batch.simulator.flows[row + 1 : row + batch.n_flows, col.STEP_ACKED].sum()
    columns = stats.duration, view.capacity, stats.acked, stats.rtt_sum, view.base_rtt
    queue = batch.simulator.results[n, col.QUEUE]
    return np.array([*(column[n] for column in columns), queue, cwnd, others], float)


class Counted:
    """Results of runs after their first second, and sums over the steps in it and after it."""

    COLUMNS = (col.SENT, col.DELIVERED, col.DROPPED, col.RANDOM_LOST, col.QUEUEING_SUM)

    def __init__(self, runs: int) -> None:
        self.counts = np.zeros((runs, len(self.COLUMNS)))
        self.histograms = np.zeros((2, runs, col.HISTOGRAM_BINS))
        self.sums = np.zeros((2, 6, runs))

    def add(self, batch: LinkBatch, links: Indices, runs: Indices, sign: int) -> None:
        """Add to some runs what their links have counted so far, or take it off."""
        simulator, flows = batch.simulator, links * batch.n_flows
        np.add.at(self.counts, runs, sign * simulator.flows[flows][:, self.COLUMNS])
        for kept, bins in zip(self.histograms, simulator.histograms, strict=True):
            np.add.at(kept, runs, sign * bins[flows])


def run_parts(
    contender: Contender,
    parts: Sequence[tuple[int, Scenario]],
    counted: Counted,
    broken: list[str],
    steps: dict[int, list[FloatArray]],
    seed: int,
) -> Iterator[float]:
    """Run parts, each the number of its run and its link; yield the share done after each step."""
    scenarios = [scenario for _, scenario in parts]
    count, config = len(parts), contender.env_config()
    if not contender.learned and contender.scheme != "oracle":
        config = replace(config, step_ms=SCHEME_STEP_MS)
    batch = loaded(contender, scenarios, config, with_histograms=True)
    # When the first flow starts, when its first second is over, and when it ends.
    ends = np.array([round(s.duration_s * NANOSECONDS) for s in scenarios])
    starts, stops = np.array([s.flows[0].span_ns for s in scenarios]).T
    ends = np.minimum(ends, stops)
    warm = starts + np.minimum(int(WARMUP_S * NANOSECONDS), (ends - starts) // 2)
    # Sums over steps, in the first second and after it.
    sums = np.zeros((2, 6, count))
    everyone, runs = np.arange(count), np.array([run for run, _ in parts])
    drawn = {n: list[FloatArray]() for n, (run, _) in enumerate(parts) if run in steps}
    parts_broken = [""] * count
    for then, now in simulate(contender, batch, scenarios, seed, parts_broken):
        phase, running = (then >= warm).astype(int), (then >= starts) & (then < ends)
        view, stats = batch.view(), batch.stats()
        guarded = batch.windows.lowered * stats.duration
        step = [view.used, view.capacity, stats.rtt_sum, stats.acked, stats.duration, guarded]
        sums[phase, :, everyone] += np.where(running, step, 0.0).T
        for n, kept in drawn.items():
            if running[n]:
                kept.append(_step(batch, n, view, stats))
        # What was counted between the end of the first second and that of the flow.
        for moment, sign in ((warm, -1), (ends, 1)):
            links = np.flatnonzero((then < moment) & (now >= moment))
            if len(links):
                counted.add(batch, links, runs[links], sign)
        yield min(float(now.sum() / ends.sum()), 1.0)
    for total, summed in zip(counted.sums, sums, strict=True):
        np.add.at(total.T, runs, summed.T)
    for run, why in zip(runs.tolist(), parts_broken, strict=True):
        broken[run] = broken[run] or why
    for n, kept in drawn.items():
        steps[parts[n][0]] += kept


def _measure(counted: Counted, scenarios: list[Scenario]) -> dict[str, FloatArray]:
    sent, delivered, dropped, random_lost, queueing = counted.counts.T
    # A packet that was sent in the first second may be lost after it.
    sent = np.maximum(np.maximum(sent, dropped + random_lost), 1)
    queueing_bins, rtt_bins = counted.histograms
    sums = counted.sums
    used, capacity, rtt, acked, seconds, guarded = sums[1]
    utilisation = used / np.maximum(capacity, 1e-9)
    mean_rtt = np.where(acked > 0, 1e3 * rtt / np.maximum(acked, 1), np.nan)
    queueing_ms = np.where(delivered > 0, queueing / np.maximum(delivered, 1) * 1e-6, np.nan)
    # What is not queueing: exact where the path changes too. On a trace all waiting is queueing, so
    # that without a delay nothing would be left; its grain is the ms.
    traced = np.array([s.link.trace is not None for s in scenarios])
    base_ms = np.maximum(mean_rtt - queueing_ms, np.where(traced, np.minimum(mean_rtt, 1.0), 0.0))
    # Beside other flows a flow's power is of its own share.
    shared = np.array([len(s.flows) > 1 for s in scenarios])
    share = np.where(shared, acked / np.maximum(capacity, 1e-9), utilisation)
    return {
        "throughput_mbps": acked * MBIT / np.maximum(seconds, 1e-9),
        "utilisation": utilisation,
        "first_second_utilisation": share_of(sums[0, 0], sums[0, 1]),
        "mean_queueing_delay_ms": queueing_ms,
        "p95_queueing_delay_ms": histogram_percentile(queueing_bins, 0.95),
        "mean_rtt_ms": mean_rtt,
        "p95_rtt_ms": histogram_percentile(rtt_bins, 0.95),
        "queueing_delay_rtt": queueing_ms / base_ms,
        "loss": (dropped + random_lost) / sent,
        "excess_loss": dropped / sent,
        "guarded": guarded / np.maximum(seconds, 1e-9),
        "power": np.where(acked > 0, share * base_ms / mean_rtt, 0.0),
    }


def histogram_percentile(bins: FloatArray, share: float) -> FloatArray:
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
