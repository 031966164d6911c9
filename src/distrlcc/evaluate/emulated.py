"""Runs contenders as real packets on emulated links, one link after another in real time.

A policy or one of our schemes sends over UDP as ``distrlcc send`` does; ``kernel-cubic`` and the
like are the kernel's own TCP. All are scored by the emulated link's log, so that they differ in
what they put on the link alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from distrlcc.errors import LinkError, OutputError, TraceError
from distrlcc.evaluate.link_scores import LinkScores
from distrlcc.evaluate.real_contender import RealContender
from distrlcc.evaluate.real_flow import real_flows
from distrlcc.evaluate.real_run import RealRun, run_link
from distrlcc.evaluate.runner import reseed
from distrlcc.evaluate.scores import SchemeScores, Series
from distrlcc.net.flow_record import MOST_LATE
from distrlcc.sim.scenario import Scenario
from distrlcc.types import FloatArray

_ATTEMPTS = 2


@dataclass(frozen=True)
class Failure:
    """A run that failed each time that it was tried."""

    contender: str
    link: str
    reason: str

    def __str__(self) -> str:
        return f"{self.contender} on {self.link} failed: {self.reason}"


@dataclass(frozen=True)
class Late:
    """A run whose senders did not keep their time, so that its figures do not count."""

    contender: str
    link: str
    share: float
    """Of the steps that were more than 1 ms late, of the flow that had most."""

    def __str__(self) -> str:
        return (
            f"{self.contender} on {self.link}: {self.share:.1%} of a flow's steps were more than "
            "1 ms late; this machine was too busy for its figures to count"
        )


@dataclass(frozen=True)
class Measured:
    """What a contender's runs gave."""

    scores: SchemeScores
    """``[L, S]``; NaN where a run failed."""
    series: tuple[Series, ...]
    """Of the links asked for, as far as their first run did not fail."""
    late: tuple[Late, ...]
    failures: tuple[Failure, ...]


def evaluate_emulated(
    contender: RealContender,
    scenarios: Sequence[Scenario],
    *,
    seeds: int = 1,
    others: str | None = None,
    series_links: tuple[int, ...] = (),
    show: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measure a contender on every link, once per seed, in real time; a failed run once more.

    Args:
        contender: Who sends as each link's first flow.
        scenarios: L links.
        seeds: Runs of each link, S, as `distrlcc.evaluate.runner.evaluate` has them.
        others: Who the other flows are; see `distrlcc.evaluate.real_contender.rival`.
        series_links: Links whose time series are kept, from the first seed.
        show: Told of each run.

    Raises:
        ConfigError: A flow cannot send real packets.
    """
    found: list[list[RealRun | None]] = []
    series, late, failures = list[Series](), list[Late](), list[Failure]()
    for place, scenario in enumerate(scenarios):
        row: list[RealRun | None] = []
        for seed in range(seeds):
            run = f"{contender.name} on {scenario.name}"
            show(f"{run}, {scenario.duration_s:g} s")
            seeded, done, reason = reseed(scenario, seed), None, ""
            flows = real_flows(seeded, contender, others)
            for attempt in range(_ATTEMPTS):
                if attempt:
                    show(f"{run}, once more ({reason})")
                try:
                    done = run_link(seeded, flows)
                except (LinkError, OutputError, TraceError) as error:
                    reason = str(error)
                else:
                    if done.late_share > MOST_LATE:
                        late.append(Late(contender.name, scenario.name, done.late_share))
                    if place in series_links and seed == 0:
                        series.append(done.series)
                    break
            else:
                failures.append(Failure(contender.name, scenario.name, reason))
            row.append(done)
        found.append(row)
    scores = _scores(contender, [scenario.name for scenario in scenarios], found)
    return Measured(scores, tuple(series), tuple(late), tuple(failures))


def _scores(
    contender: RealContender, links: Sequence[str], runs: Sequence[Sequence[RealRun | None]]
) -> SchemeScores:
    """Return runs' figures as arrays; None are runs that failed."""

    def column(figure: Callable[[RealRun], float]) -> FloatArray:
        return np.array([[figure(run) if run else math.nan for run in row] for row in runs])

    return SchemeScores(
        scheme=contender.name,
        links=tuple(links),
        learned=contender.learned,
        mean_cwnd_packets=column(lambda run: run.sender.cwnd_packets[0]),
        mean_smoothed_rtt_ms=column(lambda run: run.sender.smoothed_rtt_ms[0]),
        retransmitted_share=column(lambda run: run.sender.retransmitted_share[0]),
        **{each.name: column(attrgetter(f"scores.{each.name}")) for each in fields(LinkScores)},
    )
